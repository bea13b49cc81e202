"""Two networks on MNIST: the posterior average through `model.fit` against Adam.

A 784-100-10 network and a small convolutional one are trained by Adam with Keras' defaults, and
sampled by `SamplerCallback` with SGHMC without Sigma, which is SGD with momentum and noise. Initial
weights and numbers of epochs are equal. 10,000 of the training examples are the validation part. It
is used to choose Adam's best epoch, and was used to choose the settings below by hand. The test
part is used only for the table. With a seed, `fit` takes arrays in one order in all epochs, for
Adam and for the chains. No paper has this experiment.

The table has the accuracy, the negative log likelihood (NLL) and the expected calibration error
(ECE, 15 bins of equal width, from 0 to 1) of Adam after its last epoch, of Adam at the epoch with
the least NLL on the validation part, of a chain's last state, and of the mean of the class
probabilities over the chain's states, of which four an epoch are kept after a burn-in. One chain
has temperature 1, which is the posterior, and one a lower temperature. The figure has the accuracy
of the predictions of each confidence, in bins of at least 20 examples of the test part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.calibration import Reliability, Scores, reliability, scores
from benchmarks.common.digits import Digits, digits
from benchmarks.reproductions.experiment import Claim, Experiment, main, subplots
from benchmarks.reproductions.page import BEYOND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATES_AN_EPOCH = 4
COLD = "posteriors of networks with such priors often predict better below temperature 1"

Predictor = Callable[[np.ndarray], np.ndarray]  # images -> class probabilities


class Setting(NamedTuple):
    """A network, and how it is trained and sampled."""

    layers: Callable[[], list[keras.Layer]]  # () -> the layers
    prior_scale: float  # s; the prior of a weight into a unit with k inputs is N(0, s^2 / k)
    learning_rate: float  # h^2 N, the learning rate of SGD on the mean of the log posterior
    momentum: float  # 1 - h A, the momentum of SGD
    temperature: float  # the temperature of the second chain; the first one has 1
    num_epochs: int  # epochs of Adam, and of each chain
    num_burnin_epochs: int  # epochs of a chain that the average leaves out
    jit_compile: bool  # whether XLA compiles; its convolutions are slow on CPUs


def _dense() -> list[keras.Layer]:
    layers = keras.layers
    return [layers.Flatten(), layers.Dense(100, activation="relu"), layers.Dense(10)]


def _convolutional() -> list[keras.Layer]:
    layers = keras.layers
    return [
        layers.Reshape([28, 28, 1]),
        layers.Conv2D(16, 5, strides=2, activation="relu"),
        layers.Conv2D(32, 5, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ]


SETTINGS = {
    "784-100-10": Setting(
        _dense,
        prior_scale=14,
        learning_rate=0.1,
        momentum=0.9,
        temperature=0.03,
        num_epochs=20,
        num_burnin_epochs=8,
        jit_compile=True,
    ),
    "ConvNet": Setting(
        _convolutional,
        prior_scale=10,
        learning_rate=0.05,
        momentum=0.9,
        temperature=0.1,
        num_epochs=12,
        num_burnin_epochs=5,
        jit_compile=False,
    ),
}


class Classifier(NamedTuple):
    """One line of the table."""

    network: str  # its name
    method: str  # what made its predictions
    temperature: float | None  # of the chain; None for Adam
    validation: Scores  # scores on the validation part
    test: Scores  # scores on the test part
    reliability: Reliability  # of the predictions on the test part


def network(setting: Setting, steps: int, seed: int) -> keras.Model:
    """Returns a model compiled for Adam. Equal seeds give equal initial weights."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input([28, 28]), *setting.layers()])
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps,
        jit_compile=setting.jit_compile,
    )
    return model


def adam(setting: Setting, data: Digits, batch_size: int, seed: int) -> dict[str, keras.Model]:
    """Returns the model after the last epoch, and after the one with the least validation loss."""
    model, best = (network(setting, len(data.x) // batch_size, seed) for _ in range(2))
    weights: list[list[np.ndarray]] = []
    history = model.fit(
        data.x,
        data.y,
        batch_size,
        setting.num_epochs,
        verbose=0,
        validation_data=(data.x_valid, data.y_valid),
        validation_batch_size=1000,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: weights.append(model.get_weights())
            )
        ],
    ).history
    epoch = int(np.argmin(history["val_loss"]))
    best.set_weights(weights[epoch])
    return {
        f"Adam, {setting.num_epochs} epochs": model,
        f"Adam, best epoch on validation part: {epoch + 1}": best,
    }


def log_prior(scale: float) -> Callable[[list[tf.Tensor]], tf.Tensor]:
    """Returns the log prior N(0, scale^2 / k) of weights with k inputs; a bias has one input."""

    def log_prob(values: list[tf.Tensor]) -> tf.Tensor:
        fans = [math.prod(v.shape[:-1]) for v in values]
        squares = [k * tf.reduce_sum(v**2) for k, v in zip(fans, values, strict=True)]
        return -0.5 / scale**2 * tf.add_n(squares)

    return log_prob


def sample(
    setting: Setting, temperature: float, data: Digits, batch_size: int, seed: int
) -> tuple[keras.Model, sgmcmc.keras.SamplerCallback]:
    """Returns the model with the chain's last state, and the callback with its samples."""
    steps = len(data.x) // batch_size
    model = network(setting, steps, seed)
    h = (setting.learning_rate / len(data.x)) ** 0.5
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGHMC(
            target,
            step_size=h,
            friction=(1 - setting.momentum) / h,
            covariance=None,
            temperature=temperature,
        ),
        prior=log_prior(setting.prior_scale),
        collect=sgmcmc.keras.Collect(
            setting.num_burnin_epochs * steps, steps // STATES_AN_EPOCH - 1
        ),
        num_examples=len(data.x),
        seed=seed,
    )
    model.fit(data.x, data.y, batch_size, setting.num_epochs, verbose=0, callbacks=[sampler])
    return model, sampler


def run(
    *,
    networks: tuple[str, ...] = tuple(SETTINGS),
    batch_size: int = 250,
    share: float = 1.0,
    seed: int = 0,
) -> list[Classifier]:
    """Trains and samples all networks.

    Args:
      networks: names of the networks.
      batch_size: n.
      share: the share of the epochs of the setting that is run.
      seed: seed of initial weights, of the order of the examples and of the chains.
    """
    data = digits(flatten=False)
    classifiers = []

    def add(network: str, method: str, temperature: float | None, predict: Predictor) -> None:
        valid, test = predict(data.x_valid), predict(data.x_test)
        classifiers.append(
            Classifier(
                network,
                method,
                temperature,
                scores(valid, data.y_valid),
                scores(test, data.y_test),
                reliability(test, data.y_test),
            )
        )

    for name in networks:
        setting = SETTINGS[name]
        setting = setting._replace(
            num_epochs=math.ceil(share * setting.num_epochs),
            num_burnin_epochs=math.ceil(share * setting.num_burnin_epochs),
        )
        for method, model in adam(setting, data, batch_size, seed).items():
            add(name, method, None, _predictor(model))
        for temperature in (1.0, setting.temperature):
            model, sampler = sample(setting, temperature, data, batch_size, seed)
            chain, count = f"SGHMC at T = {temperature:g}", len(sampler.samples[0])
            add(name, f"{chain}, last state", temperature, _predictor(model))
            add(name, f"{chain}, mean of {count}", temperature, _averaging_predictor(sampler))
    return classifiers


def _predictor(model: keras.Model) -> Predictor:
    return lambda x: keras.ops.softmax(model.predict(x, 1000, verbose=0)).numpy()


def _averaging_predictor(sampler: sgmcmc.keras.SamplerCallback) -> Predictor:
    return lambda x: sampler.predict(x, batch_size=1000).mean


def show(classifiers: list[Classifier]) -> None:
    columns = ["accuracy", "NLL", "ECE"]
    command_line.print_table(
        {"network": "", "classifier": ""}
        | {f"valid. {c}": ".4f" for c in columns}
        | {f"test {c}": ".4f" for c in columns},
        [(c.network, c.method, *c.validation, *c.test) for c in classifiers],
    )


def claims(classifiers: list[Classifier]) -> list[Claim]:
    found = []
    for name in dict.fromkeys(c.network for c in classifiers):
        *adams, _, average, _, colder = (c for c in classifiers if c.network == name)
        for ours in (average, colder):
            for field, measure in (("log_loss", "NLL"), ("calibration_error", "ECE")):
                value, *others = (getattr(c.test, field) for c in (ours, *adams))
                held = value < min(others)
                found.append(
                    Claim(
                        f"{name}: the posterior average at temperature {ours.temperature:g} has a "
                        f"smaller {measure} than Adam",
                        f"{value:.4f} ({ours.method}); Adam {others[0]:.4f} after its last epoch "
                        f"and {others[1]:.4f} at its best one",
                        held,
                        "" if held else COLD,
                    )
                )
    return found


def plot(classifiers: list[Classifier]) -> Figure:
    """Draws reliability diagrams on the test part, with bins of at least 20 examples."""
    names = list(dict.fromkeys(c.network for c in classifiers))
    figure, axes = subplots(1, len(names), size=(5.0, 4.0))
    for axis, name in zip(axes[0], names, strict=True):
        for c in classifiers:
            if c.network == name:
                label = f"{c.method}: ECE {c.test.calibration_error:.4f}"
                count, *points = c.reliability
                axis.plot(*(p[count >= 20] for p in points), "o-", label=label)
        axis.plot([0, 1], [0, 1], "k:", label="calibrated")
        axis.set(title=name, xlabel="confidence", ylabel="accuracy (share of examples)")
        axis.legend(fontsize="x-small", loc="upper left")
    return figure


EXPERIMENT = Experiment(
    paper=BEYOND,
    figure="networks on MNIST",
    title="the posterior average through `model.fit` against Adam",
    run=run,
    quick={"networks": ("784-100-10",), "share": 0.3},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
