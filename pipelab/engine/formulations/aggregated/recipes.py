"""Which mixtures reach a given rate, and with which spans of layers: recipes for stages.

A recipe says: so many GPUs out of these classes (and so many out of those), for any of these
spans. "Any 3 of the 20 GPUs of types A10 and T4, for 2 to 4 layers" is one recipe; it stands
for 1,140 GPU sets times 3 sizes. A span that a stage with fewer of the same GPUs reaches too
is left out: that stage can replace it in any placement.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.formulations.aggregated.order import Order, link_order
from pipelab.engine.formulations.aggregated.rates import StageRates


@dataclass(frozen=True, eq=False)
class Recipe:
    """One kind of stage.

    Attributes
    ----------
    draws : tuple of (int, tuple of int)
        So many GPUs from these classes, freely mixed; several draws add up to one stage.
    spans : int array
        The kinds of span it is for, ascending.
    link_kind : int
        Its possible positions in the pipeline; see `Order`.
    bins : int or None
        All GPUs must be in one of these nodes; an index into `StageRates.bins`.
    """

    draws: tuple[tuple[int, tuple[int, ...]], ...]
    spans: np.ndarray
    link_kind: int
    bins: int | None = None

    @property
    def gpus(self) -> int:
        """Number of GPUs of one such stage."""
        return sum(number for number, _ in self.draws)


@dataclass(frozen=True, eq=False)
class Recipes:
    """All recipes that reach one rate, and the possible orders of their stages."""

    rates: StageRates
    threshold: float
    recipes: tuple[Recipe, ...]
    order: Order
    deadline: Deadline = NEVER  # for whatever is built of them

    def most(self, recipe: Recipe) -> int:
        """More stages of a recipe than this there cannot be."""
        count = self.rates.classes.count
        return min(int(count[list(classes)].sum()) // number for number, classes in recipe.draws)


def recipes_at(
    rates: StageRates,
    threshold: float,
    links: bool = True,
    widest: int | None = None,
    loose: bool = False,
    deadline: Deadline = NEVER,
) -> Recipes:
    """All recipes for stages that reach `threshold`.

    Parameters
    ----------
    links : bool
        False: as if every link reached it. What cannot be done then cannot be done at all.
    widest : int, optional
        Stages that use GPUs of at most so many classes, where links bind. Quicker, and what can be
        done then can be done.
    loose : bool
        True: links need to reach the rate for one GPU of every stage only. Quicker too, as sets of
        classes need not be listed, and what cannot be done then cannot be done at all.
    deadline : Deadline
        Checked during the work; `Ended` is raised. The recipes keep it for what is built of them.
    """
    good = _good(rates, threshold) if rates.pure else np.zeros((0, 0), dtype=bool)
    patterns = patterns_at(rates, threshold, deadline)
    eligible = np.zeros(len(rates.classes), dtype=bool)
    for parts, _ in patterns:
        for _, kinds in parts:
            eligible |= kinds[rates.classes.kind]
    for local in rates.local_patterns(threshold):
        eligible |= local.classes
    reaches = rates.link >= threshold if links else np.ones_like(rates.link, dtype=bool)
    largest = 1 if loose else min(widest or rates.largest, rates.largest)
    order = link_order(reaches, eligible, largest, deadline)
    drawn = _drawn_loosely if loose else _drawn
    made: dict[tuple, Recipe] = {}
    for parts, spans in patterns:
        deadline.check()
        by_class = [(number, kinds[rates.classes.kind] & eligible) for number, kinds in parts]
        for draws, link_kind, classes in drawn(order, by_class):
            # Fewer kinds of GPU than the pattern allows may reach more spans.
            size = sum(number for number, _ in draws)
            spans_here = spans
            if rates.pure:
                kinds = np.zeros(rates.composition.shape[1], dtype=bool)
                kinds[rates.classes.kind[classes]] = True
                spans_here = _pure_spans(good, rates.largest, size, kinds)
            if len(spans_here):
                known = made.get((draws, link_kind))
                spans_here = spans_here if known is None else np.union1d(known.spans, spans_here)
                made[draws, link_kind] = Recipe(draws, spans_here, link_kind)
    inside = []
    for local in rates.local_patterns(threshold):
        deadline.check()
        for draws, link_kind, _ in drawn(order, [(local.number, local.classes)]):
            inside.append(Recipe(draws, local.spans, link_kind, local.bins))
    recipes = Recipes(rates, threshold, (*made.values(), *inside), order, deadline)
    kept = tuple(r for r in recipes.recipes if recipes.most(r) > 0)
    return Recipes(rates, threshold, kept, order, deadline)


def patterns_at(
    rates: StageRates, threshold: float, deadline: Deadline = NEVER
) -> list[tuple[list[tuple[int, np.ndarray]], np.ndarray]]:
    """What reaches a rate, by kind of GPU: ([(GPUs, kinds they may be of), …], kinds of span)."""
    patterns = []
    for pattern in (
        _pure_patterns(rates, threshold)
        if rates.pure
        else _listed_patterns(rates, threshold, deadline)
    ):
        deadline.check()
        patterns.append(pattern)
    return patterns


def _good(rates: StageRates, threshold: float, rows: Any = slice(None)) -> np.ndarray:
    """Which stages reach a rate."""
    return (rates.rate[rows] > 0) & (rates.rate[rows] >= threshold)


def _drawn(order: Order, by_class: Any) -> Iterator[tuple[tuple, int, np.ndarray]]:
    """From what a stage may draw to classes: the largest sets of classes for every link kind."""
    everything = np.any([classes for _, classes in by_class], axis=0)
    for classes, link_kind in order.closed_supports(everything, by_class):
        draws = tuple((n, tuple(np.flatnonzero(own & classes).tolist())) for n, own in by_class)
        yield draws, link_kind, classes


def _drawn_loosely(order: Order, by_class: Any) -> Iterator[tuple[tuple, int, np.ndarray]]:
    """One GPU of the stage represents all of it towards its neighbours; the others come from anywhere."""
    everything = np.any([classes for _, classes in by_class], axis=0)
    for i, (_, own) in enumerate(by_class):
        others = [
            (n - (j == i), tuple(np.flatnonzero(c).tolist())) for j, (n, c) in enumerate(by_class)
        ]
        for classes, link_kind in order.closed_supports(own, [(1, own)]):
            one = (1, tuple(np.flatnonzero(classes).tolist()))
            yield (one, *(draw for draw in others if draw[0])), link_kind, everything


def _pure_patterns(rates: StageRates, threshold: float) -> Any:
    """(GPUs, kinds they may be of) for every size, and every largest set of kinds that share a span."""
    problem, largest, good = rates.problem, rates.largest, _good(rates, threshold)
    kinds = len(rates.kinds)
    table = good.reshape(kinds, largest, -1)
    types = [kind.type for kind in rates.kinds]
    groups = (
        {t: np.array([x == t for x in types]) for t in types} if problem.same_type_stages else {}
    )
    for group in groups.values() or [np.ones(kinds, dtype=bool)]:
        for size in range(1, largest + 1):
            together = _different((table[:, size - 1] & group[:, None]).T)
            for shared in together[together.any(axis=1)]:
                spans = _pure_spans(good, largest, size, shared)
                if len(spans) and rates.kind_count[shared].sum() >= size:
                    yield [(size, shared)], spans


def _different(rows: np.ndarray) -> np.ndarray:
    """The different rows of flags, as `np.unique` has them; few flags are told apart by the number they write."""
    flags = rows.shape[1]
    if flags > 62:
        return np.unique(rows, axis=0)
    written = rows @ (1 << np.arange(flags)[::-1])
    return rows[np.unique(written, return_index=True)[1]]


def _pure_spans(good: np.ndarray, largest: int, size: int, kinds: np.ndarray) -> np.ndarray:
    """Spans that `size` GPUs of any of these kinds reach, and no smaller number of them."""
    here = good.reshape(len(kinds), largest, -1)[kinds].all(axis=0)  # (sizes, spans)
    return np.flatnonzero(here[size - 1] & ~here[: size - 1].any(axis=0))


def _listed_patterns(rates: StageRates, threshold: float, deadline: Deadline) -> Any:
    """One per mixture, without the spans that it reaches with a GPU less (or several)."""
    unit = np.eye(rates.composition.shape[1], dtype=bool)
    spans = np.flatnonzero(rates.fastest.max(axis=(0, 1), initial=0.0) >= threshold)
    # by the mixture or by a part; the last by none
    reached = np.zeros((len(rates.rate) + 1, len(spans)), dtype=bool)
    ends = np.searchsorted(rates.size, np.arange(rates.largest + 1), side="right")
    step = max(1, 10_000_000 // max(1, len(spans) * len(unit)))
    for first, last in pairwise(ends.tolist()):  # smaller ones come first
        for i in range(first, last, step):
            deadline.check()
            rows = slice(i, min(i + step, last))
            before = np.zeros((rows.stop - i, len(spans)), dtype=bool)
            for part in rates.without_one[rows].T:
                before |= reached[part]
            new = (
                (rates.rate[rows][:, spans] >= threshold)
                & (rates.rate[rows][:, spans] > 0)
                & ~before
            )
            reached[rows] = new | before
            for j in np.flatnonzero(new.any(axis=1)):
                row = rates.composition[i + j]
                yield [(int(row[k]), unit[k]) for k in np.flatnonzero(row)], spans[new[j]]
