"""From counts back to a placement: the layers of every stage, and its GPUs by id."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from pipelab.errors import PipelabError
from pipelab.formulations.aggregated.recipes import Recipe, Recipes

__all__ = ["assign", "spread_layers"]


def spread_layers(low: np.ndarray, high: np.ndarray, layers: int) -> list[int]:
    """Give every stage its fewest layers, then one more at a time to the shortest that may have more."""
    size = low.copy()
    for _ in range(layers - int(size.sum())):
        open_to_more = np.flatnonzero(size < high)
        size[open_to_more[size[open_to_more].argmin()]] += 1
    if size.sum() != layers:
        raise PipelabError("a solver returned stages that do not hold all layers")
    return size.tolist()


def assign(found: Recipes, stages: Sequence[Recipe], prices: Sequence[float] | None = None) -> list[tuple[int, ...]]:
    """GPU ids for every stage: the lowest of each class that are still free.

    How many GPUs a mixed draw takes from each of its classes is a transport problem: cheapest
    first, then by class. Its corners are whole numbers.
    """
    classes = found.rates.classes
    needs = [(i, number, own) for i, stage in enumerate(stages) for number, own in stage.draws]
    demand: dict[tuple[int, ...], int] = {}
    for _, number, own in needs:
        demand[own] = demand.get(own, 0) + number
    taken = _transport(demand, classes.count, prices)
    free = [list(members) for members in classes.members]
    stock = {own: [a for a in own for _ in range(taken[own][a])] for own in demand}
    gpus: list[list[int]] = [[] for _ in stages]
    for i, number, own in needs:
        for a in stock[own][:number]:
            gpus[i].append(int(free[a].pop(0)))
        del stock[own][:number]
    return [tuple(g) for g in gpus]


def _transport(demand, count: np.ndarray, prices) -> dict[tuple[int, ...], dict[int, int]]:
    """How many GPUs each set of classes gives, within what every class has."""
    single = {own: {own[0]: n} for own, n in demand.items() if len(own) == 1}
    mixed = [(own, n) for own, n in demand.items() if len(own) > 1]
    if not mixed:
        return single
    from scipy.optimize import linprog

    left = count.astype(float)
    for own, n in demand.items():
        if len(own) == 1:
            left[own[0]] -= n
    pair = [(d, a) for d, (own, _) in enumerate(mixed) for a in own]
    draw, cls = np.array(pair).T
    one, column = np.ones(len(pair)), np.arange(len(pair))
    cost = np.array([prices[a] if prices else 0.0 for a in cls]) + 1e-6 * cls / len(count)
    answer = linprog(
        cost, A_ub=sp.csr_array((one, (cls, column)), shape=(len(count), len(pair))), b_ub=left,
        A_eq=sp.csr_array((one, (draw, column)), shape=(len(mixed), len(pair))), b_eq=[n for _, n in mixed],
        method="highs-ds",
    )  # fmt: skip
    if answer.status != 0:
        raise PipelabError("a solver returned stages for which there are not enough GPUs")
    out = {own: {} for own, _ in mixed}
    for (d, a), amount in zip(pair, np.rint(answer.x).astype(int), strict=True):
        out[mixed[d][0]][a] = int(amount)
    return single | out
