"""Runs on the second of two logical CPUs; `test_xla.py` starts this in a process of its own."""

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

X = np.random.default_rng(0).normal(size=[200, 3]).astype(np.float32)
WEIGHTS = np.ones([3], np.float32)


def target() -> sgmcmc.MinibatchLogProb:
    return sgmcmc.MinibatchLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, -1),
        lambda w, batch: -0.5 * tf.reduce_sum((batch - w[..., tf.newaxis, :]) ** 2, -1),
        X,
        batch_size=10,
    )


def devices(nest: object) -> set[str]:
    """Returns where tensors and variables are."""
    leaves = tf.nest.flatten(nest)
    return {x.device.rpartition("/device:")[2] for x in leaves if hasattr(x, "device")}


def of_a_run() -> set[str]:
    kernel = sgmcmc.NOGIN(target(), step_size=0.01)
    result = sgmcmc.sample_chain(kernel, tf.zeros([2, 3]), 5, seed=0, progress_bar=False)
    return devices((kernel._target._data, result.final_state, result.final_kernel_results))


def of_sample_chain() -> set[str]:
    kernel = sgmcmc.SGLD(target(), step_size=0.001)
    chain = tf.function(
        lambda: tfp.mcmc.sample_chain(
            5, tf.zeros([3]), kernel=kernel, seed=[0, 1], trace_fn=lambda _, results: results
        ),
        autograph=False,
        jit_compile=True,
    )
    return devices(chain())


def of_a_control_variate() -> set[str]:
    base = target()
    center, _ = sgmcmc.find_center(base, tf.zeros([3]))
    kernel = sgmcmc.UnderdampedLangevin(sgmcmc.ControlVariate(base, center, order=2), 0.02)
    result = sgmcmc.sample_chain(kernel, tf.zeros([3]), 5, seed=0, progress_bar=False)
    return devices((center, result.final_kernel_results))


def of_fit() -> set[str]:
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    loss = sgmcmc.keras.NegativeLogLikelihood(lambda out: tfp.distributions.Normal(out, 1.0))
    model.compile(loss=loss)
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGLD(target, step_size=1e-4),
        prior=None,
        collect=sgmcmc.keras.Collect(0, 0),
        seed=0,
        num_examples=len(X),
    )
    model.fit(X, X @ WEIGHTS[:, None], batch_size=50, epochs=2, verbose=0, callbacks=[sampler])
    return devices([v.value for v in model.variables])


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    for run in (of_a_run, of_sample_chain, of_a_control_variate, of_fit):
        with tf.device("/CPU:1"):
            found = run()
        assert found == {"CPU:1"}, (run.__name__, found)
        if run is of_a_run:
            assert run() == {"CPU:0"}  # without the scope
    print("all on CPU:1")


if __name__ == "__main__":
    main()
