"""From counts back to a placement: the layers of every stage, and its GPUs by id."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelab.engine.formulations.aggregated.packing import Packing
from pipelab.engine.formulations.aggregated.recipes import Recipe, Recipes
from pipelab.engine.solvers.linear_program import incidence
from pipelab.errors import PipelabError


def spread_layers(low: np.ndarray, high: np.ndarray, layers: int) -> list[int]:
    """Give every stage its fewest layers, then one more at a time to the shortest that may have more."""
    size = low.copy()
    for _ in range(layers - int(size.sum())):
        open_to_more = np.flatnonzero(size < high)
        size[open_to_more[size[open_to_more].argmin()]] += 1
    if size.sum() != layers:
        raise PipelabError("a solver returned stages that do not hold all layers")
    return size.tolist()


def assign(
    found: Recipes, stages: Sequence[Recipe], prices: Sequence[int] | None
) -> list[tuple[int, ...]]:
    """GPU ids for every stage: the lowest of each class that are still free.

    Parameters
    ----------
    prices : sequence of int or None
        Of one GPU of each class; a mixed draw then takes the cheapest that leave enough for the
        others.
    """
    classes = found.rates.classes
    inside = _in_nodes(found, stages)
    needs = [
        (i, number, own)
        for i, stage in enumerate(stages)
        if i not in inside
        for number, own in stage.draws
    ]
    demand: dict[tuple[int, ...], int] = {}
    for _, number, own in needs:
        demand[own] = demand.get(own, 0) + number
    taken = {g for own in inside.values() for g in own}
    left = [[g for g in members.tolist() if g not in taken] for members in classes.members]
    stock = _shared_out(demand, np.array([len(own) for own in left]), prices)
    free = [iter(own) for own in left]
    gpus: list[list[int]] = [list(inside.get(i, ())) for i in range(len(stages))]
    for i, number, own in needs:
        gpus[i] += [next(free[a]) for a in stock[own][:number]]
        del stock[own][:number]
    return [tuple(g) for g in gpus]


def _in_nodes(found: Recipes, stages: Sequence[Recipe]) -> dict[int, list[int]]:
    """GPU ids of the stages that must lie inside one node; see `packing`."""
    out: dict[int, list[int]] = {}
    for b, packing in Packing.of(found).of_bins.items():
        mine = [i for i, stage in enumerate(stages) if stage.bins == b]
        free = [iter(node.tolist()) for node in found.rates.bins[b].nodes]
        for i, node in zip(mine, packing.packed([stages[i].gpus for i in mine]), strict=True):
            out[i] = [next(free[node]) for _ in range(stages[i].gpus)]
    return out


def _shared_out(
    demand: dict[tuple[int, ...], int], count: Any, prices: Any
) -> dict[tuple[int, ...], list[int]]:
    """The class of every GPU that each set of classes gives, within what every class has.

    Who draws how many GPUs from which class is a transport problem: its matrix is totally
    unimodular, so the vertex at which the simplex method ends is whole.
    """
    single = {own: [own[0]] * n for own, n in demand.items() if len(own) == 1}
    mixed = [(own, n) for own, n in demand.items() if len(own) > 1]
    given = np.array([a for gpus in single.values() for a in gpus], dtype=int)
    left = count - np.bincount(given, minlength=len(count))
    # no other draw is from these classes: the cheapest first, no solver needed
    if len(mixed) <= 1:
        return single | {own: _cheapest(own, n, left, prices) for own, n in mixed}
    from scipy.optimize import linprog

    draw, cls = np.array([(d, a) for d, (own, _) in enumerate(mixed) for a in own]).T
    cost = np.array(prices if prices else np.arange(len(count)), dtype=float)[cls]
    answer = linprog(
        cost,
        incidence(cls, len(count)),
        left,
        incidence(draw, len(mixed)),
        [n for _, n in mixed],
        method="highs-ds",
    )
    if answer.x is None:
        raise PipelabError("a solver returned stages for which there are not enough GPUs")
    out: dict[tuple[int, ...], list[int]] = {own: [] for own, _ in mixed}
    for d, a, amount in zip(draw, cls, np.rint(answer.x).astype(int), strict=True):
        out[mixed[d][0]] += [int(a)] * int(amount)
    return single | out


def _cheapest(
    own: tuple[int, ...], number: int, left: np.ndarray, prices: Sequence[int] | None
) -> list[int]:
    """The classes of `number` GPUs from these, lowest price (or class) first."""
    order = sorted(own, key=lambda a: (prices[a] if prices else 0, a))
    drawn = [a for a in order for _ in range(int(left[a]))][:number]
    if len(drawn) < number:
        raise PipelabError("a solver returned stages for which there are not enough GPUs")
    return drawn
