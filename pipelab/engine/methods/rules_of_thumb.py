"""Rules of thumb as methods: one stage per GPU, in the order of their ids, cut by a rule of `splits`.

None of them looks at rates, so none proves anything. If a stage does not fit in memory, there is no
placement, and the reason says which GPU is short of how much.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

from pipelab import splits
from pipelab.engine.answers import Result, rated_result
from pipelab.errors import InvalidPlacement, InvalidValue
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem
from pipelab.splits import Split


def even(problem: Problem, order: Sequence[int]) -> Split:
    """Place equally many layers on every GPU."""
    return splits.split_even(problem.model.layers, len(order))


def proportional(problem: Problem, order: Sequence[int]) -> Split:
    """Place layers in proportion to each GPU's memory."""
    return splits.split_proportional(problem.model.layers, _memory(problem, order))


def by_flops(problem: Problem, order: Sequence[int]) -> Split:
    """Cut wherever a fair share of the FLOPs is reached, each layer counted by its work."""
    work = [problem.model.work(range(i, i + 1)) for i in range(problem.model.layers)]
    return splits.split_by_flops(work, len(order))


def bandwidth_aware(problem: Problem, order: Sequence[int]) -> Split:
    """Place layers by the bandwidth from each GPU to the next (the last to the first), to twice its share of memory."""
    onward = [*order[1:], order[0]]
    # A single GPU has no link, and gets every layer whatever the number.
    pairs = zip(order, onward, strict=True)
    bandwidth = [problem.cluster.bandwidth_between(a, b) if a != b else 1.0 for a, b in pairs]
    memory = _memory(problem, order)
    return splits.split_bandwidth_aware(problem.model.layers, memory, bandwidth)


RULES = {rule.__name__: rule for rule in (even, proportional, by_flops, bandwidth_aware)}


def _memory(problem: Problem, order: Sequence[int]) -> list[float]:
    return [problem.cluster.gpus[g].memory_gb for g in order]


def _checked(problem: Problem, gpus: Any) -> tuple[int, ...]:
    """Return GPU ids of the cluster, at least one, none twice."""
    top = len(problem.cluster) - 1
    good = isinstance(gpus, Sequence) and all(
        isinstance(g, Integral) and 0 <= int(g) <= top for g in gpus
    )
    if not good or not len(gpus) or len(set(gpus)) < len(gpus):
        expected = f"expected different GPU ids from 0 to {top}, in pipeline order"
        raise InvalidValue("solve", [("gpus", gpus, expected)])
    return tuple(int(g) for g in gpus)


def solve_by_rule(name: str, problem: Problem, *, gpus: Sequence[int] | None = None) -> Result:
    """Cut one stage per GPU by a rule and evaluate it; if it does not fit, the result has a reason and no placement.

    Parameters
    ----------
    name : str
        Of the rule.
    problem : Problem
    gpus : sequence of int, optional
        GPU ids in pipeline order; by default all, by id.
    """
    began = time.perf_counter()
    order = tuple(range(len(problem.cluster))) if gpus is None else _checked(problem, gpus)
    known: dict[str, Any] = {"size": {"stages": len(order)}, "solver": "rule of thumb"}
    result = partial(rated_result, problem, name, bound=None, seconds=0.0, **known)
    if len(order) > problem.model.layers:
        reason = f"{len(order)} GPUs for {problem.model.layers} layers; name fewer with gpus=(…)"
        answer = result(placement=None, reason=reason, details={"not_applicable": True})
    else:
        stages = zip(RULES[name](problem, order), order, strict=True)
        placement = Placement(tuple(Stage(part, (g,)) for part, g in stages))
        try:
            answer = result(placement=placement)
        except InvalidPlacement as error:
            reason = "; ".join(error.defects)
            answer = result(placement=None, reason=reason, details={"misfit": True})
    return replace(answer, seconds=time.perf_counter() - began)
