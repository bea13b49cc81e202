"""The host's side of a chain: it takes over samples, sees that all is well, and saves."""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np

from tfp_sgmcmc.diagnostics import NonFiniteChainError
from tfp_sgmcmc.keras.fit.chain import Chain, Status
from tfp_sgmcmc.keras.fit.ring_buffer import Collection
from tfp_sgmcmc.keras.fit.sample_log import Samples, StoredSamples

# Reading a variable makes an accelerator wait: while no sample is due, look for NaN this often.
_STEPS_UNSEEN = 100

_DEPENDENT = (
    "The epoch that fit has taken had each example once, so its batches are not independent, but "
    "the kernel makes up for the gradient noise of independent ones. Its variances will be too "
    "small, by up to the share of the gradient noise in all noise. Pass `resident` data of the "
    "callback to fit, whose batches are independent; if those that fit has are, too, pass "
    "check_num_examples=False."
)


class Place(NamedTuple):
    """How far a script's fits are.

    Attributes:
      fit: number of the one under way, or the last one, from 0.
      num_epochs: epochs of it that are over, counted as Keras does.
      total_epochs: of all fits together.
    """

    fit: int = -1
    num_epochs: int = 0
    total_epochs: int = 0


class Collector:
    """Takes over from the device what a chain leaves.

    Attributes:
      chain: or None, until the model is built.
      samples: in memory or on a disk.
      failed: whether the chain has become NaN or infinite.

    Args:
      collection: which states are kept.
      samples: where they go to.
      seconds_between_commits: at least, of a `StoredSamples`, which is saved at ends of epochs.
      num_burnin_epochs: before the first sample.
      num_examples: N, of which an epoch of `fit` has to consist; None is not to check.

    Raises:
      TypeError: `collection.keep` is not callable.
    """

    def __init__(
        self,
        collection: Collection,
        samples: Samples | StoredSamples,
        seconds_between_commits: float = 0.0,
        num_burnin_epochs: int = 0,
        num_examples: int | None = None,
    ):
        if collection.keep is not None and not callable(collection.keep):
            raise TypeError(
                f"keep is a {type(collection.keep).__name__}; a callable, step -> whether it is "
                "kept, is expected."
            )
        self.chain: Chain | None = None
        self.samples, self.failed = samples, False
        self._collection, self._num_examples = collection, num_examples
        self._seconds, self._num_burnin_epochs = seconds_between_commits, num_burnin_epochs
        self._num_seen = self._num_unseen = 0  # steps before the last look; at most so many since
        self._rows_before = 0  # examples seen before this epoch
        self._has_own_rows = False
        self._place = self._saved = Place()
        self._epochs_asked = 0
        self._committed_at = -np.inf
        self._initial: list[tuple[keras.Variable, np.ndarray]] = []

    @property
    def is_stored(self) -> bool:
        return isinstance(self.samples, StoredSamples)

    @property
    def trainable_values(self) -> list[Any]:
        """Samples of the trainable variables, `[num_kept, chains..., ...]`."""
        if self.chain is None:
            return []
        variables, lead = self.chain.variables, self.chain.chain_shape
        if not len(self.samples):
            return [np.zeros([0, *lead, *v.shape], v.dtype) for v in variables]
        return self.samples.values[: len(variables)]

    def start(self, chain: Chain) -> None:
        self.chain = chain
        self._initial = [(v, v.numpy()) for v in chain.model.weights]

    def begin_fit(self, num_epochs: int) -> int | None:
        """Goes on from what is saved; returns the epoch to begin at, None for the first.

        Fits and epochs that are over according to what is saved are not run again.

        Raises:
          ValueError: the model is not built; what is saved is of another chain.
        """
        self._place = Place(self._place.fit + 1, 0, self._place.total_epochs)
        self._epochs_asked = num_epochs
        if not isinstance(self.samples, StoredSamples):
            return None
        if self.chain is None:
            raise ValueError(
                "With a directory the model has to be built before fit: give it an Input, or call "
                "it on a batch."
            )
        is_new = not len(self.samples)
        checkpoint, recorded = self.samples.open(self.chain.model, self.chain.kernel_description)
        if checkpoint is not None and is_new:
            self.chain.restore(checkpoint, recorded)
            self._num_seen = self.chain.status().num_steps
            numbers = checkpoint.restore("place", dict.fromkeys(Place._fields, np.int64(0)))
            self._saved = Place(**{name: int(n) for name, n in numbers.items()})
        if self._place.fit > self._saved.fit:
            return None
        done = num_epochs if self._place.fit < self._saved.fit else self._saved.num_epochs
        self._place = self._place._replace(num_epochs=done, total_epochs=self._saved.total_epochs)
        return done or None

    def end_fit(self, is_stopped: bool) -> None:
        """Saves, and lets go of the directory; a fit that `is_stopped` early is over, too."""
        if is_stopped:
            self._place = self._place._replace(num_epochs=self._epochs_asked)
        self._commit(finish=True)
        if isinstance(self.samples, StoredSamples):
            self.samples.close()

    def begin_epoch(self, has_own_rows: bool) -> None:
        """Args: has_own_rows: whether examples may be resident, whose number is known."""
        self._has_own_rows = has_own_rows
        if self.chain is None:
            return
        status = self.chain.status()
        self._rows_before = status.num_rows
        if self._num_burnin_epochs and self._place.total_epochs == self._num_burnin_epochs:
            first = max(status.num_steps, self._collection.num_burnin_steps)
            self.chain.keep_from(first)

    def end_epoch(self, epoch: int, is_whole: bool) -> None:
        """Looks, checks an epoch that `is_whole`, and saves.

        Raises:
          ValueError: not N examples.

        Warns:
          UserWarning: a kernel that expects independent batches had those of an epoch.
        """
        if self.chain is None:
            return
        status = self.look()
        is_checked = is_whole and self._num_examples is not None
        if is_checked:
            self._check_rows(status, expected_at_least=self._num_examples)
        self._place = Place(self._place.fit, epoch + 1, self._place.total_epochs + 1)
        self._commit()
        is_first = is_checked and self._place.total_epochs == 1
        if is_first and status.num_rows and status.num_steps > 1 and self.chain.uses_scores:
            warnings.warn(_DEPENDENT, stacklevel=2)  # its data are not resident, nor one batch

    def after_execution(self, num_steps: int) -> None:
        """Looks, if need be, after at most `num_steps` more steps."""
        if self.chain is None:  # its first batch failed
            return
        self._num_unseen += num_steps
        is_long_unseen = self._num_unseen >= _STEPS_UNSEEN or self.chain.model.run_eagerly
        last = self._num_seen + self._num_unseen
        if is_long_unseen or self._collection.may_be_due(self._num_seen, last):
            self.look()

    def look(self) -> Status:
        """Takes over new samples.

        Raises:
          NonFiniteChainError: the loss, its gradient or a sample is NaN or infinite.
          ValueError: more examples than N in an epoch.
        """
        assert self.chain is not None
        status, rings = self.chain.status(), self.chain.rings
        self._num_unseen, self._num_seen = 0, status.num_steps
        loss_is_finite = status.first_bad < 0
        num_steps = status.num_steps if loss_is_finite else status.first_bad
        values, steps = rings.read(len(self.samples), status.num_kept, num_steps)
        if len(steps):
            is_finite = [np.isfinite(x).reshape(len(x), -1).all(axis=1) for x in values]
            num_finite = int(np.logical_and.reduce(is_finite).cumprod().sum())
            if num_finite:
                finite = [x[:num_finite] for x in values]
                self.samples.append(rings.recorded, finite, steps[:num_finite])
            if num_finite < len(steps):
                self._fail(self.chain, int(steps[num_finite]))
        if not loss_is_finite:
            self._fail(self.chain, num_steps)
        self._check_rows(status, expected_at_least=0)
        return status

    def _commit(self, finish: bool = False) -> None:
        chain = self.chain
        if not isinstance(self.samples, StoredSamples) or chain is None or not chain.has_run:
            return
        if finish or time.monotonic() - self._committed_at >= self._seconds:
            place = max(self._place, self._saved)._asdict()
            numbers = {name: np.int64(n) for name, n in place.items()}
            nests = {"chain": chain.saved(), "place": numbers}
            self.samples.commit(chain.rings.recorded, nests, finish)
            self._committed_at = time.monotonic()

    def _check_rows(self, status: Status, expected_at_least: int) -> None:
        rows = status.num_rows - self._rows_before
        if self._num_examples is None or (self._has_own_rows and not rows):
            return
        if not expected_at_least <= rows <= self._num_examples:
            so_far = "" if expected_at_least else " so far"
            raise ValueError(
                f"One epoch of fit gave {rows} examples{so_far}, but num_examples is "
                f"{self._num_examples}. N is the number of training examples, without the "
                "validation split; if steps_per_epoch makes an epoch shorter or longer than the "
                "data, pass check_num_examples=False."
            )

    def _fail(self, chain: Chain, step: int) -> None:
        self.failed = True
        bad, values = chain.not_finite(), self.samples.values
        for variable, value in self._initial:
            variable.assign(value)
        if values:
            for variable, own in zip(chain.rings.recorded, values, strict=True):
                variable.assign(own[-1] if chain.num_chains is None else own[-1][0])
        if isinstance(self.samples, StoredSamples):
            self.samples.close()  # for a callback that starts again from what is saved
        start = "the last of them" if values else "where the chain began"
        what = bad[0] if bad else "The loss or its gradient"
        raise NonFiniteChainError(
            f"{what} became NaN or infinite by step {step} of the chain. "
            f"The {len(self.samples)} samples before it are in the error's and the callback's "
            f"`samples`; the model is set back to {start}. A smaller step_size is the usual cure.",
            step,
            tuple(bad[:1]),
            self.trainable_values,
        )
