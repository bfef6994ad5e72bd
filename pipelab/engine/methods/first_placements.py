"""First placements of every search: simple ones that are evaluated at once, without any table."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from pipelab.cluster import GPU
from pipelab.engine.methods.rules_of_thumb import RULES, solve_by_rule
from pipelab.engine.prices import bill, pays
from pipelab.engine.tolerances import REACHED
from pipelab.errors import InvalidPlacement
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.splits import split_even

# of all that are evaluated: a fifth of a second, and the same ones on every machine
_MOST_STAGES = 300
Value = Callable[[Placement, Evaluation], float]  # the less, the better


def fastest(placement: Placement, evaluation: Evaluation) -> float:
    """Return the value where the greatest rate is sought."""
    return -evaluation.rate


def incumbents(problem: Problem, budget: float | None = None) -> dict[Placement, Evaluation]:
    """Evaluate rules of thumb, groups of one node as a single stage, and pipelines of equal stages of one type.

    The simplest come first, until they have 300 stages together. Those that do not fit, or cost more than a budget in
    $ per hour, are left out.
    """
    placements = simple_placements(problem)
    if budget is not None:
        placements = (p for p in placements if pays(budget, given(bill(problem, [p]))))
    evaluations, stages = {}, 0
    most = problem.costs.most_gpus
    for placement in placements:
        if stages >= _MOST_STAGES:
            break
        if len(placement.gpus) > most:
            continue
        stages += len(placement)
        with suppress(InvalidPlacement):
            evaluations[placement] = evaluate(problem, placement)
    return evaluations


def simple_placements(problem: Problem) -> Iterator[Placement]:
    """Yield the placements of `incumbents`, the simplest first, whether they fit or not."""
    yield from chain(_by_rules(problem), _stages_alone(problem), _pipelines(problem))


def best_of(
    evaluations: Mapping[Placement, Evaluation],
    at_least: float = 0.0,
    value: Value = fastest,
    yields: Callable[[Evaluation], float] = lambda evaluation: evaluation.rate,
) -> Placement | None:
    """Choose the least value among placements that yield enough; of equal ones, the fewest GPUs."""
    reach = [p for p, e in evaluations.items() if yields(e) >= at_least * (1 - REACHED)]
    return min(reach, key=lambda p: (value(p, evaluations[p]), len(p.gpus)), default=None)


def _by_rules(problem: Problem) -> Iterator[Placement]:
    # what is not chosen is not searched for
    one = problem.with_in_flight(problem.workload.in_memory)
    for name in RULES:
        placement = solve_by_rule(name, one).placement
        if placement is not None:
            yield placement


def _stages_alone(problem: Problem) -> Iterator[Placement]:
    """Put all layers on 1, 2, … identical GPUs of one node; of identical nodes, the first is used."""
    seen = set()
    for gpu, ids in _by_kind(problem).items():
        for number in range(1, min(len(ids), problem.max_gpus_per_stage) + 1):
            key = replace(gpu, node=gpu.node and "one", machine=""), number
            if key not in seen:
                seen.add(key)
                yield Placement.of([(problem.model.layers, ids[:number])])


def _pipelines(problem: Problem) -> Iterator[Placement]:
    """Build pipelines of 2, 3, … equal stages of one type: all GPUs of a node each, half of them, …, 1."""
    kinds, layers = _by_kind(problem), problem.model.layers
    size = min(max(map(len, kinds.values())), problem.max_gpus_per_stage)
    while size:
        for name in dict.fromkeys(gpu.type for gpu in kinds):
            nodes = [ids for gpu, ids in kinds.items() if gpu.type == name]
            starts = [(ids, i) for ids in nodes for i in range(0, len(ids) - size + 1, size)]
            stages = [ids[i : i + size] for ids, i in starts]
            number = 2
            while number <= min(len(stages), layers):
                sizes = [len(part) for part in split_even(layers, number)]
                yield Placement.of(zip(sizes, stages[:number], strict=True))
                number += max(1, number // 4)
        size //= 2


def _by_kind(problem: Problem) -> dict[GPU, list[int]]:
    """List the GPU ids of every kind; nodes are kept apart."""
    kinds: dict[GPU, list[int]] = {}
    for g, gpu in enumerate(problem.cluster.gpus):
        kinds.setdefault(gpu, []).append(g)
    return kinds
