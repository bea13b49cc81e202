"""Moves samples of a chain from the device to the host, checks them, and saves the chain."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from tfp_sgmcmc.diagnostics import NonFiniteChainError
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.chain.chain_state import Status
from tfp_sgmcmc.keras.chain.collection import Collection
from tfp_sgmcmc.keras.records.fit_fingerprint import FitProblem
from tfp_sgmcmc.keras.records.sample_log import SampleLog, StoredSampleLog

# Reading a variable makes an accelerator wait, so NaN is looked for this often without samples.
_STEPS_UNSEEN = 100


@dataclasses.dataclass
class FitNumbers:
    """Numbers that the parts of a callback share; some follow from the first `fit`.

    Attributes:
      collection: which states are kept.
      num_examples: N, or None until it is known.
      checks_size: whether an epoch of `fit` must have N examples.
      num_burnin_epochs: epochs of the burn-in.
      has_relative_weights: whether the chain divides the examples' weights by their mean.
    """

    collection: Collection
    num_examples: int | None
    checks_size: bool
    num_burnin_epochs: int
    has_relative_weights: bool = False


class FitProgress(NamedTuple):
    """Progress of the fits of a script.

    Attributes:
      fit: number of the current or last fit, from 0.
      num_epochs: completed epochs of this fit, as Keras counts them.
      total_epochs: completed epochs of all fits.
    """

    fit: int = -1
    num_epochs: int = 0
    total_epochs: int = 0


class Recorder:
    """Moves the samples of a chain from the device to memory or disk.

    Attributes:
      chain: the chain, or None until the model is built.
      samples: the samples so far, in memory or on disk.
      failed: whether the chain has become NaN or infinite.
      also_saved: nests by name that are saved with the chain.
      cause_in_data: returns in words which data have made the loss NaN or infinite, or None.

    Args:
      numbers: the numbers of the callback.
      samples: see above.
      seconds_between_commits: shortest time between saves to a `StoredSampleLog`, which happen at
        the ends of epochs.
    """

    def __init__(
        self,
        numbers: FitNumbers,
        samples: SampleLog | StoredSampleLog,
        seconds_between_commits: float = 0.0,
    ):
        self.chain: Chain | None = None
        self.samples, self.failed = samples, False
        self.also_saved: dict[str, Any] = {}
        self.cause_in_data: Callable[[], str | None] | None = None
        self._numbers, self._seconds = numbers, seconds_between_commits
        self._num_seen = self._num_unseen = 0  # steps at the last pull; upper bound of those since
        self._rows_before = 0  # examples seen before this epoch
        self._may_be_resident, self._counts_rows = False, True
        self._progress = self._saved = FitProgress()
        self._epochs_asked = 0
        self._begun_at: int | None = None  # steps at the beginning of a fit that has not ended
        self._committed_at = -np.inf
        self._initial: list[tuple[keras.Variable, np.ndarray]] = []

    @property
    def trainable_values(self) -> list[Any]:
        """Samples of the trainable variables, `[num_kept, chains..., ...]`."""
        if self.chain is None:
            return []
        state = self.chain.state
        if not len(self.samples):
            lead = [0, *state.chain_shape]
            return [np.zeros([*lead, *v.shape], v.dtype) for v in state.variables]
        return self.samples.values[: len(state.variables)]

    def start(self, chain: Chain) -> None:
        """Starts recording a new chain."""
        self.chain = chain
        self._num_seen = self._num_unseen = 0
        self._initial = [(v, v.numpy()) for v in chain.model.weights]

    def begin_fit(
        self, num_epochs: int, problem: FitProblem, settings: Mapping[str, Any]
    ) -> int | None:
        """Restores a saved chain; returns the epoch to begin at, or None for the first.

        Fits and epochs that were completed before the chain was saved are not repeated. `settings`
        are values that must be the same for the chain to continue.

        Raises:
          ValueError: the model is not built, or a different chain was saved.
        """
        steps = 0 if self.chain is None else self.chain.state.status().num_steps
        if self._begun_at is None or self._begun_at != steps:  # else the last fit did nothing
            self._progress = FitProgress(self._progress.fit + 1, 0, self._progress.total_epochs)
        self._epochs_asked, self._begun_at = num_epochs, steps
        if not isinstance(self.samples, StoredSampleLog):
            self._take_left_samples()
            return None
        if self.chain is None:
            raise ValueError(
                "The model must be built before fit if the callback has a directory. Give it an "
                "Input, or call it on a batch, which builds all layers that it calls. Leave out "
                "others."
            )
        is_new = not len(self.samples)
        scoped = {f"any fit, {name}": x for name, x in problem.of_all.items()}
        scoped |= {f"fit {self._progress.fit}, {name}": x for name, x in problem.of_fit.items()}
        checkpoint, recorded = self.samples.open(self.chain.model, settings, scoped)
        if checkpoint is not None and is_new:
            self.chain.rings.recorded = recorded
            self.chain.state.restore(checkpoint)
            self._num_seen = self._begun_at = self.chain.state.status().num_steps
            numbers = checkpoint.restore("place", dict.fromkeys(FitProgress._fields, np.int64(0)))
            self._saved = FitProgress(**{name: int(n) for name, n in numbers.items()})
        if not is_new:
            self._take_left_samples()
        if self._progress.fit > self._saved.fit:
            return None
        done = num_epochs if self._progress.fit < self._saved.fit else self._saved.num_epochs
        self._progress = self._progress._replace(
            num_epochs=done, total_epochs=self._saved.total_epochs
        )
        return done or None

    def _take_left_samples(self) -> None:
        """Takes samples that an interrupt left on the device, before a step overwrites them."""
        if self.chain is not None and self.chain.state.has_run and not self.failed:
            self._take_samples()

    def end_fit(self, is_stopped: bool) -> None:
        """Saves, and releases the directory. A fit that was stopped early counts as completed.

        Warns:
          UserWarning: it was stopped before a state was kept.
        """
        if is_stopped and self.chain is not None and not len(self.samples):
            warnings.warn(
                "fit must go on until the end of the burn-in. Received: a fit that a callback has "
                f"stopped in epoch {self.total_epochs}, after {self.chain.state.status().num_steps}"
                " steps and before a state was kept. Leave EarlyStopping out, since the loss of a "
                "sampler need not fall; or let it begin after the burn-in (start_from_epoch=...).",
                stacklevel=2,
            )
        self._begun_at = None
        if is_stopped:
            self._progress = self._progress._replace(num_epochs=self._epochs_asked)
        self._commit(finish=True)
        if isinstance(self.samples, StoredSampleLog):
            self.samples.close()

    @property
    def total_epochs(self) -> int:
        """Completed epochs of all fits."""
        return self._progress.total_epochs

    @property
    def burnin_epochs_left(self) -> int:
        """Epochs of the burn-in that are not completed."""
        return max(0, self._numbers.num_burnin_epochs - self._progress.total_epochs)

    def begin_epoch(self, may_be_resident: bool, counts_rows: bool) -> int:
        """Begins an epoch; returns the number of steps before it.

        The examples of an epoch that may be resident are counted only if `fit` delivers some.
        """
        self._may_be_resident, self._counts_rows = may_be_resident, counts_rows
        if self.chain is None:
            return 0
        status = self.chain.state.status()
        self._rows_before = status.num_rows
        if 0 < self._numbers.num_burnin_epochs == self._progress.total_epochs:
            first = max(status.num_steps, self._numbers.collection.num_burnin_steps)
            self.chain.state.write_status(status._replace(first_kept=first))
        return status.num_steps

    def end_epoch(self, epoch: int, is_whole: bool) -> None:
        """Pulls new samples, checks the number of examples of a whole epoch, and saves.

        Raises:
          ValueError: the epoch did not have N examples.
        """
        if self.chain is None:
            return
        status = self.pull_samples()
        if is_whole:
            self._check_rows(status, is_whole)
        self._progress = FitProgress(self._progress.fit, epoch + 1, self._progress.total_epochs + 1)
        self._commit()

    def after_execution(self, num_steps: int) -> None:
        """Pulls new samples if there can be some after at most `num_steps` more steps."""
        if self.chain is None:  # its first batch failed
            return
        self._num_unseen += num_steps
        is_long_unseen = self._num_unseen >= _STEPS_UNSEEN or self.chain.model.run_eagerly
        last = self._num_seen + self._num_unseen
        if is_long_unseen or self._numbers.collection.may_be_due(self._num_seen, last):
            self.pull_samples()

    def pull_samples(self) -> Status:
        """Moves new samples from the device to the log; returns the chain's status.

        Raises:
          NonFiniteChainError: the loss, its gradient or a sample is NaN or infinite.
          ValueError: the epoch has more than N examples.
        """
        status = self._take_samples()
        self._check_rows(status, is_whole=False)
        return status

    def _take_samples(self) -> Status:
        assert self.chain is not None
        status, rings = self.chain.state.status(), self.chain.rings
        self._num_unseen, self._num_seen = 0, status.num_steps
        loss_is_finite = status.first_bad < 0
        num_steps = status.num_steps if loss_is_finite else status.first_bad
        values, steps, sizes = rings.read(len(self.samples), status.num_kept, num_steps)
        if len(steps):
            is_finite = [np.isfinite(x).reshape(len(x), -1).all(axis=1) for x in values]
            num_finite = int(np.logical_and.reduce(is_finite).cumprod().sum())
            if num_finite:
                finite = [x[:num_finite] for x in (*values, steps, sizes)]
                self.samples.append(rings.recorded, finite)
            if num_finite < len(steps):
                self._fail(self.chain, int(steps[num_finite]))
        if not loss_is_finite and self.chain.role != "trial":
            self._fail(self.chain, num_steps)
        return status

    def _commit(self, finish: bool = False) -> None:
        chain = self.chain
        if not isinstance(self.samples, StoredSampleLog) or chain is None or chain.is_pilot:
            return
        is_due = finish or time.monotonic() - self._committed_at >= self._seconds
        if chain.state.has_run and is_due:
            progress = max(self._progress, self._saved)._asdict()
            numbers = {name: np.int64(n) for name, n in progress.items()}
            nests = {"chain": chain.state.saved(), "place": numbers, **self.also_saved}
            self.samples.commit(chain.rings.recorded, nests, finish)
            self._committed_at = time.monotonic()

    def _check_rows(self, status: Status, is_whole: bool) -> None:
        rows, expected = status.num_rows - self._rows_before, self._numbers.num_examples
        if not self._counts_rows or (self._may_be_resident and not rows):
            return
        assert expected is not None  # settled
        if not (expected if is_whole else 0) <= rows <= expected:
            if not self._progress.total_epochs:  # every step so far used a wrong N
                self._set_back()
            so_far = "" if is_whole else " so far"
            raise ValueError(
                f"num_examples must be the number of training examples, without the validation "
                f"split. Received: {expected}, but one epoch of fit had {rows} "
                f"examples{so_far}. If steps_per_epoch makes an epoch shorter or longer than the "
                "data, pass check_num_examples=False."
            )

    def _set_back(self) -> None:
        for variable, value in self._initial:
            variable.assign(value)

    def _fail(self, chain: Chain, step: int) -> None:
        """Restores the model's last finite state, and raises NonFiniteChainError."""
        self.failed = True
        bad, values = chain.state.not_finite(), self.samples.values
        values = values if values and len(values[0]) else []  # none was kept so far
        self._set_back()
        for variable, samples in zip(chain.rings.recorded if values else (), values, strict=True):
            variable.assign(samples[-1] if chain.state.num_chains is None else samples[-1][0])
        if isinstance(self.samples, StoredSampleLog):
            self.samples.close()  # so that another callback can continue from the saved chain
        start = "the last of them" if values else "where the chain began"
        what = bad[0] if bad else "The loss or its gradient"
        cure = (
            "If the data have no such numbers, a smaller step_size is the usual cure; without a "
            "kernel, scale the inputs and the targets, or add normalization layers."
        )
        losses = keras.tree.flatten(chain.model.loss)
        if any(getattr(loss, "learns_scale", False) for loss in losses):
            cure += (
                " Targets with hardly any noise draw the learned scale to 0, and with it the "
                "largest stable step: give the loss a known scale, such as GaussianNLL(scale=0.1)."
            )
        if not step:  # where the chain began
            cure = "Look for such numbers in the data; loss and prior must have gradients there."
        if not bad and self.cause_in_data is not None:
            cure = self.cause_in_data() or cure
        raise NonFiniteChainError(
            f"{what} became NaN or infinite by step {step} of the chain. The `samples` of this "
            f"error and the callback are the {len(self.samples)} before it, and the model is set "
            f"back to {start}. {cure}",
            step,
            tuple(bad[:1]),
            self.trainable_values,
        )
