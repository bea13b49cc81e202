"""Wrong calls derived from signatures: the values that the name or type of an argument forbids."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from benchmarks.robustness import kinds, values
from benchmarks.robustness.calls import Entry

# Other words that name an argument in a message.
ALSO = {
    "target_log_prob_fn": "target|log_prob|log posterior|log_prob_fn",
    "init_state": "state|initial state",
    "initial_state": "state|initial state",
    "current_state": "state",
    "previous_kernel_results": "results",
    "log_prior_fn": "log prior|prior",
    "log_likelihood_fn": "log likelihood",
    "score_fn": "scores",
    "num_examples": "N|examples",
    "dataset": "batches|batch",
    "load_shard": "shard|data",
    "num_shards": "load_shard|shards",
    "trace_fn": "trace",
    "x": "data",
    "y": "data|labels",
    "sample_weight": "data",
    "make_kernel_fn": "kernel",
}
ZERO_IS_VALID = (
    "num_burnin_steps",
    "num_steps_between_results",
    "num_burnin_epochs",
    "burn_in",
    "lag",
)


def entry(
    room: str,
    function: Callable[..., Any],
    give: Mapping[str, Any],
    wrong: Mapping[str, Sequence[Any]] | None = None,
    *,
    use: Callable[[Any], Any] | None = None,
    call: Callable[..., Any] | None = None,
    name: str | None = None,
    only: Set[str] = frozenset(),
    without: Set[str] = frozenset(),
    also: Mapping[str, str] | None = None,
) -> Entry:
    """Returns the wrong calls of a function, a class or a bound method.

    A valid call takes `give`, and the defaults of the signature for the rest. The wrong values of
    an argument are those in `wrong`, or those of its name (`kinds.BY_NAME`), or those of its
    annotation.

    Args:
      room: the part of the library, for the table.
      function: the callable.
      give: arguments of the valid call.
      wrong: wrong values of arguments whose name and annotation do not determine them.
      use: takes the value of `function` as far as a user would, such as a step of a kernel.
      call: called in place of `function`, with the same arguments.
      name: the name in the table; None is the qualified name of `function`.
      only: the arguments that are made wrong; empty stands for all.
      without: arguments that are never made wrong.
      also: further words that name an argument in a message.
    """
    wrong, given = dict(wrong or {}), dict(give)
    made: dict[str, list[Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.default is not parameter.empty:
            given.setdefault(parameter.name, parameter.default)
        is_chosen = not only or parameter.name in only
        if is_chosen and parameter.name in given and parameter.name not in without:
            found = wrong.get(parameter.name)
            made[parameter.name] = [*(_wrong_values(parameter) if found is None else found)]
    run = call or function
    names = {key: "|".join(filter(None, (ALSO.get(key), (also or {}).get(key)))) for key in made}
    return Entry(
        room,
        name or getattr(function, "__qualname__", repr(function)),
        (lambda **arguments: use(run(**arguments))) if use else run,
        given,
        made,
        names,
    )


def _wrong_values(parameter: inspect.Parameter) -> Sequence[Any]:
    """Returns what an argument must refuse, by its name or its annotation."""
    words = [word.strip() for word in str(parameter.annotation).split("|")]
    optional = parameter.default is None or "None" in words
    if parameter.name in kinds.BY_NAME:
        return [v for v in kinds.BY_NAME[parameter.name]() if not (optional and v is None)]
    if "bool" in words:
        return values.boolean(optional)
    if "int" in words:
        return values.integer(0 if parameter.name in ZERO_IS_VALID else 1, optional=optional)
    if "float" in words:
        return values.number(-1.0, optional=optional)
    if words[0].startswith("Literal"):
        return values.choice(words[0].split("'")[1], optional)
    if "PathLike" in str(parameter.annotation):
        return values.path(optional)
    if "Callable" in words[0]:
        return values.function(1, optional=optional)
    return values.instance(optional=optional)
