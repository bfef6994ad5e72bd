"""Which mixes of GPUs make a pipeline of at least some rate: all of them at once, layer by layer.

At a rate t the recipes (`aggregated.recipes`) say which stages reach it. After l layers a pipeline
is in a state of the order (which classes may follow) and has used some mix. So a table with a set of
mixes for every (l, state), filled from the first layer to the last, ends with every mix that reaches t.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb, prod
from typing import Any

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline, Ended
from pipelab.engine.deployments.held_layers import HeldLayers, longest
from pipelab.engine.deployments.mixes import Mixes
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.formulations.aggregated.recipes import Recipe, Recipes, recipes_at
from pipelab.engine.layer_runs import runs_of

_MOST_WAYS = 200_000  # of drawing a recipe's GPUs from its classes

# A stage of a pipeline: its number of layers, and its GPUs of each class.
StageOf = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Reachable:
    """The mixes that make a pipeline of at least one rate.

    Attributes
    ----------
    ends : int
        A set of mixes (`Mixes`) that make a pipeline: at least those with which some pipeline
        uses each GPU of the mix.
    complete : bool
        False where some stages were left out, as there were too many: then a mix that is missing
        may reach the rate nevertheless.
    """

    ends: int
    complete: bool


@dataclass(eq=False)
class ReachableMixes:
    """Answers for one table of rates, rate by rate.

    Attributes
    ----------
    rates : StageRates
    mixes : Mixes
        Of the same classes.
    """

    rates: StageRates
    mixes: Mixes
    deadline: Deadline = NEVER

    def at(self, index: int) -> Reachable:
        """The mixes of rate number `index`."""
        recipes = self._recipes(index)
        runs, ends = runs_of(self.rates.problem.model), 0
        complete = not recipes.order.narrowed and self._few(recipes)
        if recipes.order.free and self.longest_is_best and runs.alike_inside:
            ways = [
                (drawn, longest(runs, recipe.spans)) for recipe, drawn, _ in self._ways(recipes)
            ]
            layers = self.rates.problem.model.layers
            return Reachable(self._held.pipelines(layers, ways, self.deadline), complete)
        for mixes in self._filled(recipes)[-1].values():
            ends |= mixes
        return Reachable(ends, complete)

    def stages(self, index: int, mix: tuple[int, ...]) -> list[StageOf]:
        """The stages of a pipeline of at least rate number `index` that uses just this mix."""
        recipes = self._recipes(index)
        filled, ways = self._filled(recipes), self._ways(recipes)
        layers = len(filled) - 1
        state = next(s for s, mixes in filled[layers].items() if self.mixes.has(mixes, mix))
        stages: list[StageOf] = []
        while layers:
            layers, state, stage = self._step_back(recipes, filled, ways, layers, state, mix)
            mix = tuple(n - m for n, m in zip(mix, stage[1], strict=True))
            stages.append(stage)
        return stages[::-1]

    @cached_property
    def _held(self) -> HeldLayers:
        return HeldLayers(self.mixes)

    def _step_back(
        self,
        recipes: Recipes,
        filled: list[dict[int, int]],
        ways: list[tuple[Recipe, list[tuple[int, ...]], np.ndarray]],
        layers: int,
        state: int,
        mix: tuple[int, ...],
    ) -> tuple[int, int, StageOf]:
        """A last stage with which so many layers, this state and this mix are reached, and from where."""
        order = recipes.order
        for before in range(layers):
            for recipe, drawn, spans in ways:
                if (
                    order.leads_to[recipe.link_kind] != state
                    or not spans[before, layers - before - 1]
                ):
                    continue
                for gpus in drawn:
                    left = [n - m for n, m in zip(mix, gpus, strict=True)]
                    if min(left) < 0:
                        continue
                    for old, mixes in filled[before].items():
                        if order.entry[recipe.link_kind, old] and self.mixes.has(mixes, left):
                            return before, old, (layers - before, gpus)
        raise AssertionError("a mix was reached from nowhere")

    def _filled(self, recipes: Recipes) -> list[dict[int, int]]:
        """The set of mixes by number of layers and state."""
        order = recipes.order
        layers = self.rates.problem.model.layers
        ways = self._ways(recipes)
        only_longest = order.free and self.longest_is_best
        sets: list[dict[int, int]] = [defaultdict(int) for _ in range(layers + 1)]
        sets[0][0] = self.mixes.none
        for at in range(layers):
            self.deadline.check()
            for recipe, drawn, spans in ways:
                here = 0
                for state, mixes in sets[at].items():
                    if order.entry[recipe.link_kind, state]:
                        here |= mixes
                sizes = np.flatnonzero(spans[at, : layers - at]) + 1
                if not here or not len(sizes):
                    continue
                reached = 0
                for gpus in drawn:
                    reached |= self.mixes.more(here, gpus)
                state = int(order.leads_to[recipe.link_kind])
                for size in sizes[-1:] if only_longest else sizes:
                    sets[at + size][state] |= reached
        return sets

    def _recipes(self, index: int) -> Recipes:
        return recipes_at(self.rates, float(self.rates.thresholds[index]), deadline=self.deadline)

    def _ways(self, recipes: Recipes) -> list[tuple[Recipe, list[tuple[int, ...]], np.ndarray]]:
        """Of every recipe: its possible GPUs by class, and which spans it is for by first layer and size."""
        kind = runs_of(self.rates.problem.model).kind
        few = self._few(recipes)
        return [
            (recipe, list(self._drawn(recipe, few)), np.isin(kind, recipe.spans))
            for recipe in recipes.recipes
        ]

    def _few(self, recipes: Recipes) -> bool:
        """Whether all ways to draw GPUs can be listed."""
        return _number_of_ways(recipes) <= _MOST_WAYS

    def _drawn(self, recipe: Recipe, every: bool) -> Iterator[tuple[int, ...]]:
        """GPUs of each class that the draws of a recipe can take; of one class each unless `every`."""
        seen = set()
        count = self.rates.classes.count
        choices = [
            combinations_with_replacement(own, n) if every else [(a,) * n for a in own]
            for n, own in recipe.draws
        ]
        for chosen in product(*choices):
            gpus = [0] * len(count)
            for a in (a for part in chosen for a in part):
                gpus[a] += 1
            if tuple(gpus) not in seen and (np.array(gpus) <= count).all():
                seen.add(tuple(gpus))
                yield tuple(gpus)

    @cached_property
    def longest_is_best(self) -> bool:
        """Whether what a stage can hold at a rate it can hold in part, from any layer on.

        Then, where links do not bind, only the longest stage from a layer on is of interest.
        """
        kind, rate = runs_of(self.rates.problem.model).kind, self.rates.rate
        layers, seen = len(kind), set[tuple[int, int]]()
        for size in range(2, layers + 1):
            starts = np.arange(layers - size + 1)
            whole = kind[starts, size - 1]
            for part in (kind[starts, size - 2], kind[starts + 1, size - 2]):
                seen.update(zip(whole.tolist(), part.tolist(), strict=True))
        pairs: Any = sorted(seen)
        wholes, parts = np.array(pairs, dtype=int).reshape(-1, 2).T
        return bool((rate[:, parts] >= rate[:, wholes]).all())


def _number_of_ways(recipes: Recipes) -> int:
    return sum(
        prod(comb(len(own) + n - 1, n) for n, own in recipe.draws) for recipe in recipes.recipes
    )


def frontier(
    reachable: ReachableMixes, least: int = 0, highest: int | None = None
) -> tuple[list[tuple[int, tuple[int, ...]]], int, bool]:
    """Every (rate, mix) such that the mix reaches the rate and no smaller mix does, nor this one a higher rate.

    What a mix reaches at a rate it reaches at every lower one. So where two rates have the same
    mixes, all rates between them do, and nothing has to be computed there.

    Parameters
    ----------
    least, highest : int
        Rates below and above these numbers are not looked at: what reaches more than the highest
        counts as that.

    Returns
    -------
    columns : list of (int, tuple of int)
        Number of the rate, and the mix; the highest rates first.
    above : int
        Rates from this number on are done; equal to `least` unless the deadline was first.
    complete : bool
        No stages were left out.
    """
    above = len(reachable.rates.thresholds) if highest is None else highest + 1
    closed: dict[int, int] = {above: 0}
    found: list[tuple[int, tuple[int, ...]]] = []
    complete = True

    def closure(index: int) -> int:
        nonlocal complete
        if index not in closed:
            at = reachable.at(index)
            complete = complete and at.complete
            closed[index] = reachable.mixes.at_least(at.ends)
        return closed[index]

    try:
        while above > least:
            done = closed[above]

            def differs(index: int, done: int = done) -> bool:
                return closure(index) != done

            if not differs(least):
                above = least
                break
            low, high = _bracket(differs, least, above - 1)
            while low < high:  # the highest rate with more mixes than `above`
                middle = (low + high + 1) // 2
                if differs(middle):
                    low = middle
                else:
                    high = middle - 1
            new = reachable.mixes.smallest(closure(low)) & ~done
            found += [(low, tuple(mix)) for mix in reachable.mixes.listed(new).tolist()]
            above = low
            closed = {i: mixes for i, mixes in closed.items() if i <= above}
    except Ended:
        pass
    return found, above, complete


def _bracket(true_at: Callable[[int], bool], least: int, high: int) -> tuple[int, int]:
    """Down from `high` in steps 1, 2, 4, … to the first number at which something is true."""
    step, low = 1, high
    while low > least and not true_at(low):
        high, low, step = low - 1, max(least, low - step), 2 * step
    return low, high
