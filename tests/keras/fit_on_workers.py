"""A script that samples a small classifier by `fit`; `test_two_workers.py` runs it.

With the environment variable TF_CONFIG, it is one of several workers. Its argument is a JSON object
of options, and what it finds goes to the file `output` as arrays.
"""

import contextlib
import json
import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

N = 64
KERNELS = {
    "SGLD": lambda target: sgmcmc.SGLD(target, 1e-3),
    "SGNHT": lambda target: sgmcmc.SGNHT(target, 3e-3),
    "SGHMC": lambda target: sgmcmc.SGHMC(target, 3e-3, covariance="diag"),
    "NOGIN": lambda target: sgmcmc.NOGIN(target, 3e-3, covariance="full"),
}


class Slow(keras.callbacks.Callback):
    """Writes the number of the epoch to a file, and leaves a moment for a kill."""

    def __init__(self, path, seconds):
        super().__init__()
        self.path, self.seconds = path, seconds

    def on_epoch_end(self, epoch, logs=None):
        if self.path:
            with open(self.path, "a") as file:
                file.write(f"{epoch}\n")
        time.sleep(self.seconds)


class InOrder(keras.utils.PyDataset):
    """Each example once, the last batch short."""

    def __init__(self, x, y, size):
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __getitem__(self, i):
        part = slice(i * self.size, (i + 1) * self.size)
        return self.x[part], self.y[part]


def num_collectives(callback):
    """Returns the number of collective operations of a compiled step, or -1."""
    step = callback._train_function._function
    if not getattr(step, "_compiled", None):
        return -1
    (compiled,) = step._compiled.values()
    graph = compiled.get_concrete_function().graph
    return sum("Collective" in op.type for op in graph.get_operations())


def run(
    output=None, kernel="SGLD", epochs=2, batch_size=16, directory=None, hidden="", data="fresh",
    num_chains=None, seed=0, shift=0.0, epochs_file=None, seconds=0.0, validate=False,
    num_rows=N, arrays_in_validation=False, run_eagerly=False, plain=False,
):  # fmt: skip
    """Samples, and saves the samples, the weights and the logs."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else None
    rng = np.random.default_rng(0)
    x = rng.normal(size=[num_rows, 3]).astype(np.float32) + np.float32(shift)
    y = (x[:, 0] > 0).astype(np.int32)
    keras.utils.set_random_seed(1)
    layers = {"": [], "batchnorm": [keras.layers.BatchNormalization()]}[hidden]
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential(
            [keras.Input([3]), keras.layers.Dense(4, "tanh"), *layers, keras.layers.Dense(2)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, jit_compile=False, metrics=["accuracy"], run_eagerly=run_eagerly)
    place = directory and sgmcmc.Directory(directory, seconds_between_commits=0.0)
    callback = sgmcmc.keras.SamplerCallback(
        KERNELS[kernel],
        prior=tfp.distributions.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(0, 0),
        chains=num_chains,
        output=place,
        seed=seed,
    )
    batches = {
        "fresh": lambda: sgmcmc.keras.IndependentBatches(x, y, batch_size=batch_size),
        "in order": lambda: InOrder(x, y, batch_size),
    }[data]
    validation = sgmcmc.keras.WorkerBatches(InOrder(x, y, 7)) if validate else None
    found = {}
    if plain:  # what Keras itself does with arrays
        try:
            model.fit(x, y, batch_size=batch_size, verbose=0)
        except ValueError as error:
            found["error of Keras"] = str(error)
    history = model.fit(
        sgmcmc.keras.WorkerBatches(batches()),
        epochs=epochs,
        verbose=0,
        callbacks=[callback, Slow(epochs_file, seconds)],
        validation_data=(x, y) if arrays_in_validation else validation,
    ).history
    if directory is not None and not os.path.exists(directory):
        np.savez(output, **{f"weight {i}": w for i, w in enumerate(model.get_weights())})
        return  # not worker 0
    samples = [np.asarray(s) for s in callback.samples]
    found |= {f"sample {i}": s for i, s in enumerate(samples)}
    moving = callback.result.non_trainable_samples.values()
    found |= {f"moving {i}": np.asarray(s) for i, s in enumerate(moving)}
    found |= {f"weight {i}": w for i, w in enumerate(model.get_weights())}
    found |= {f"log {name}": np.asarray(values) for name, values in history.items()}
    found |= {"steps": callback.result.trace["step"], "prediction": callback.predict(x[:4]).mean}
    found["collective operations"] = num_collectives(callback)
    if output is not None:
        np.savez(output, **found)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
