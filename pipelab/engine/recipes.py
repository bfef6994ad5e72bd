"""Which mixtures reach a given rate, and with which spans of layers: recipes for stages.

A recipe says: so many GPUs out of these classes (and so many out of those), for any of these
spans. "Any 3 of the 20 GPUs of types A10 and T4, for 2 to 4 layers" is one recipe; it stands
for 1,140 GPU sets times 3 sizes. A span that a stage with fewer of the same GPUs reaches too
is left out: that stage can replace it in any placement.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.packing import Packing
from pipelab.engine.rates import StageRates
from pipelab.engine.stages import Links, Mixed, Stages, links_at


def recipes_at(
    rates: StageRates,
    threshold: float,
    links: bool = True,
    widest: int | None = None,
    deadline: Deadline = NEVER,
) -> Stages:
    """All stages that reach `threshold`.

    Parameters
    ----------
    links : bool
        False: as if every link reached it. What cannot be done then cannot be done at all.
    widest : int, optional
        Stages that use GPUs of at most so many classes, where links bind. Quicker, and what can be
        done then can be done.
    deadline : Deadline
        Checked during the work; `Ended` is raised.
    """
    good = _good(rates, threshold) if rates.pure else np.zeros((0, 0), dtype=bool)
    patterns = patterns_at(rates, threshold, deadline)
    together = [np.any([kinds for _, kinds in parts], axis=0) for parts, _ in patterns]
    groups = [_different(np.array(together))[:, rates.classes.kind]] if together else []
    groups += [local.classes[None] for local in rates.local_patterns(threshold)]
    wide = np.concatenate([np.zeros((0, len(rates.classes)), dtype=bool), *groups])
    wide = np.unique(wide, axis=0)
    reaches = rates.link >= threshold if links else np.ones_like(rates.link, dtype=bool)
    found = links_at(reaches, list(wide), min(widest or rates.largest, rates.largest), deadline)
    made: dict[tuple, np.ndarray] = {}  # spans by draws, link kind and bins
    for parts, spans in patterns:
        deadline.check()
        by_class = [(number, kinds[rates.classes.kind]) for number, kinds in parts]
        for draws, link_kind, classes in _drawn(found, by_class):
            # Fewer kinds of GPU than the pattern allows may reach more spans.
            size = sum(number for number, _ in draws)
            spans_here = spans
            if rates.pure:
                kinds = np.zeros(rates.composition.shape[1], dtype=bool)
                kinds[rates.classes.kind[classes]] = True
                spans_here = _pure_spans(good, rates.largest, size, kinds)
            if len(spans_here):
                key = draws, link_kind, None
                made[key] = np.union1d(made.get(key, spans_here), spans_here)
    inside = []
    for local in rates.local_patterns(threshold):
        deadline.check()
        for draws, link_kind, _ in _drawn(found, [(local.number, local.classes)]):
            inside.append(((draws, link_kind, local.bins), local.spans))
    return _as_stages(rates, found, [*made.items(), *inside])


def _as_stages(rates: StageRates, links: Links, recipes: list[tuple[tuple, np.ndarray]]) -> Stages:
    """Those of which there can be a stage, as arrays."""
    count, bins = rates.classes.count, dict[int, list[int]]()
    kept: list[tuple[tuple, int, np.ndarray]] = []
    for (draws, link_kind, own), spans in recipes:
        if all(count[list(classes)].sum() >= number for number, classes in draws):
            if own is not None:
                bins.setdefault(own, []).append(len(kept))
            kept.append((draws, link_kind, spans))
    gpus = np.zeros((len(kept), len(count)), dtype=int)
    possible = np.zeros((len(kept), rates.rate.shape[1]), dtype=bool)
    mixed = []
    for r, (draws, _, spans) in enumerate(kept):
        possible[r, spans] = True
        for number, classes in draws:
            if len(classes) == 1:
                gpus[r, classes[0]] += number
            else:
                mixed.append(Mixed(r, number, classes))
    packings = tuple(
        Packing(np.array(own), gpus[own].sum(axis=1), rates.bins[b].nodes)
        for b, own in bins.items()
    )
    kind = np.array([link_kind for _, link_kind, _ in kept], dtype=int)
    seconds = np.zeros(possible.shape)
    return Stages(
        rates.problem, rates.classes, gpus, tuple(mixed), possible, seconds, kind, links, packings
    )


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


def _drawn(links: Links, by_class: Any) -> Iterator[tuple[tuple, int, np.ndarray]]:
    """From what a stage may draw to classes: the largest sets of classes for every link kind."""
    everything = np.any([classes for _, classes in by_class], axis=0)
    for classes, link_kind in links.closed_supports(everything, by_class):
        draws = tuple((n, tuple(np.flatnonzero(own & classes).tolist())) for n, own in by_class)
        yield draws, link_kind, classes


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
