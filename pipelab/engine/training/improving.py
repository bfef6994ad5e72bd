"""A placement made better step by step: layers moved, stages swapped, GPUs exchanged, put in and left out."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.tolerances import PROVEN_WITHIN
from pipelab.engine.training.batch import Batch
from pipelab.engine.training.orders import Order
from pipelab.engine.training.stages import Stages

_SIMULATED = 256  # neighbours of least bound, per round

Plan = tuple[tuple[int, ...], tuple[int, ...]]  # compositions, and layers of every stage


def improved(
    stages: Stages,
    orders: dict[int, Order],
    plan: Plan,
    seconds: float,
    deadline: Deadline,
) -> tuple[Plan, float]:
    """The best that a walk from neighbour to better neighbour ends at; stopped early, the best so far."""
    while deadline.reason is None:
        best = _best_neighbour(stages, orders, plan, seconds, deadline)
        if best is None:
            break
        plan, seconds = best
    return plan, seconds


def _best_neighbour(
    stages: Stages, orders: dict[int, Order], plan: Plan, seconds: float, deadline: Deadline
) -> tuple[Plan, float] | None:
    by_ranks: dict[int, list[Plan]] = defaultdict(list)
    for each in set(neighbours(stages, plan)):
        if len(each[0]) in orders:
            by_ranks[len(each[0])].append(each)
    found: tuple[Plan, float] | None = None
    useful = seconds * (1 - PROVEN_WITHIN)
    for ranks, plans in sorted(by_ranks.items()):
        plans.sort()
        batch = batch_of(plans)
        bound = batch.bounds(stages, orders[ranks])
        nearest = np.argsort(bound, kind="stable")[:_SIMULATED]
        nearest = nearest[bound[nearest] < useful]
        if not len(nearest) or deadline.reason is not None:
            continue
        value = batch.take(nearest).step_times(stages, orders[ranks])
        least = int(np.argmin(value))
        if value[least] < useful:
            useful = float(value[least])
            found = plans[int(nearest[least])], useful
    return found


def batch_of(plans: list[Plan]) -> Batch:
    """Plans on equally many ranks as arrays."""
    compositions = np.array([plan[0] for plan in plans])
    sizes = np.array([plan[1] for plan in plans])
    return Batch(compositions, np.concatenate([sizes[:, :1] * 0, sizes.cumsum(axis=1)], axis=1))


def neighbours(stages: Stages, plan: Plan) -> Iterator[Plan]:
    """Plans one change away; each keeps every layer and uses no more GPUs than there are."""
    held, sizes = plan
    ranks = len(held)
    for i in range(ranks):
        for j in range(ranks):
            if i != j and sizes[i] > 1:
                yield held, _changed(sizes, {i: sizes[i] - 1, j: sizes[j] + 1})
    for i in range(ranks):
        for j in range(i):
            swapped = _changed(held, {i: held[j], j: held[i]})
            yield swapped, sizes
            yield swapped, _changed(sizes, {i: sizes[j], j: sizes[i]})
    for i in range(ranks):
        for j in range(ranks):
            if i != j:
                yield _moved(held, i, j), _moved(sizes, i, j)
    left = stages.classes.count - stages.composition[list(held)].sum(axis=0)
    for i in range(ranks):
        free = left + stages.composition[held[i]]
        for c in np.flatnonzero((stages.composition <= free).all(axis=1)).tolist():
            yield _changed(held, {i: c}), sizes
    for i in range(ranks):
        if ranks > 1:
            rest = held[:i] + held[i + 1 :]
            fewer = sizes[:i] + sizes[i + 1 :]
            for j in {max(0, i - 1), min(i, ranks - 2)}:
                yield rest, _changed(fewer, {j: fewer[j] + sizes[i]})
    for c in np.flatnonzero((stages.composition <= left).all(axis=1)).tolist():
        for i in range(ranks):
            if sizes[i] > 1:
                half = sizes[i] // 2
                parts = (sizes[i] - half, half)
                grown = sizes[:i] + parts + sizes[i + 1 :]
                yield held[: i + 1] + (c,) + held[i + 1 :], grown
                yield held[:i] + (c,) + held[i:], grown


def _changed(values: tuple[int, ...], to: dict[int, int]) -> tuple[int, ...]:
    return tuple(to.get(i, value) for i, value in enumerate(values))


def _moved(values: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    rest = values[:i] + values[i + 1 :]
    return rest[:j] + (values[i],) + rest[j:]
