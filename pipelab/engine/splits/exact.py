"""The best contiguous split: by trying all of them, and by dynamic programming, proven."""

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np

from pipelab.engine.splits.split import ROUNDING, Split, amounts, check_sizes, ranges, speeds_of
from pipelab.errors import InvalidValue, TooLarge
from pipelab.fields import whole_number

__all__ = ["count_splits", "split_exhaustive", "split_minmax"]


def count_splits(layers: int, stages: int) -> int:
    """How many contiguous splits there are: a choice of stages - 1 of the layers - 1 boundaries.

    Parameters
    ----------
    layers, stages : int
        At least 1.

    Returns
    -------
    int
        Exact; 0 where there are more stages than layers.

    Raises
    ------
    InvalidValue
        A number is no whole number of at least 1.

    Examples
    --------
    >>> count_splits(80, 8)
    2898753715
    """
    return comb(
        whole_number("count_splits", "layers", layers) - 1,
        whole_number("count_splits", "stages", stages) - 1,
    )


def split_exhaustive(
    costs: Sequence[float],
    stages: int,
    *,
    speeds: Sequence[float] | None = None,
    limit: int = 2_000_000,
) -> Split:
    """Try every contiguous split; the first of the best, earliest boundaries first.

    Parameters
    ----------
    costs : sequence of float, length M
        Of every layer, finite and at least 0.
    stages : int
        At most M.
    speeds : sequence of float, one per stage, optional
        A stage costs the sum of its layers over its speed; 1 by default.
    limit : int
        Most splits to try.

    Returns
    -------
    tuple of range
        Layers of each stage, numbered from 0.

    Raises
    ------
    TooLarge
        There are more than `limit` of them; the message says how many, nothing is tried.
    InvalidValue
        A number or length does not fit.
    """
    costs = amounts("costs", costs)
    check_sizes(len(costs), stages)
    speed = speeds_of(speeds, stages)
    number = count_splits(len(costs), stages)
    if number > limit:
        advice = "split_minmax finds the best one without trying them"
        raise TooLarge(
            f"{number:,} splits of {len(costs)} layers over {stages} stages; {advice}",
            {"splits": number},
        )
    total = np.concatenate([[0.0], np.cumsum(costs)])
    best, best_cost = np.array([0]), np.inf
    for cuts in combinations(range(1, len(costs)), stages - 1):
        ends = np.array([0, *cuts, len(costs)])
        cost = (np.diff(total[ends]) / speed).max()
        if cost < best_cost:
            best, best_cost = ends, cost
    return ranges(np.diff(best).tolist())


def split_minmax(
    costs: Sequence[float],
    stages: int,
    *,
    speeds: Sequence[float] | None = None,
    memory: Sequence[float] | None = None,
    limits: Sequence[float] | None = None,
) -> Split | None:
    """The contiguous split with the smallest bottleneck, exactly.

    Parameters
    ----------
    costs : sequence of float, length M
        Cost of every layer, finite and at least 0.
    stages : int
        At most M.
    speeds : sequence of float, one per stage, optional
        A stage costs the sum of its layers over its speed; 1 by default.
    memory : sequence of float, length M, optional
        Memory that every layer needs.
    limits : sequence of float, one per stage, optional
        Memory that every stage offers, in the same unit; needs `memory`.

    Returns
    -------
    tuple of range, or None
        Layers of each stage, numbered from 0. None where the limits leave no split at all.

    Raises
    ------
    InvalidValue
        A number or length does not fit, or memory and limits do not come together.

    Notes
    -----
    `best[s][j]`, the smallest bottleneck of the first j layers on the first s stages, is the
    minimum over i < j of max(best[s-1][i], cost of layers i … j-1 on stage s). A stage that
    costs more than some known split's bottleneck cannot help, which keeps the range of i
    short: about 2·M·M/stages steps of array arithmetic instead of M·M·stages.
    """
    costs = amounts("costs", costs)
    check_sizes(len(costs), stages)
    speed = speeds_of(speeds, stages)
    if (memory is None) != (limits is None):
        raise InvalidValue("split_minmax", [("limits", limits, "memory and limits go together")])
    needs = (
        np.zeros(len(costs)) if memory is None else np.array(amounts("memory", memory, len(costs)))
    )
    offers = (
        np.full(stages, np.inf) if limits is None else np.array(amounts("limits", limits, stages))
    )
    cost_to = np.concatenate([[0.0], np.cumsum(costs)])
    need_to = np.concatenate([[0.0], np.cumsum(needs)])
    least = max(cost_to[-1] / speed.sum(), max(costs) / speed.max())  # no split can do better
    known, filled = _some_bottleneck(cost_to, need_to, speed, offers, least)
    if known == least:
        return filled
    best = np.where(np.arange(len(costs) + 1) == 0, 0.0, np.inf)
    starts = []
    for stage in range(stages):
        best, start = _add_stage(best, cost_to, need_to, speed[stage], offers[stage], known)
        starts.append(start)
    if not np.isfinite(best[-1]):
        return None
    ends = [len(costs)]
    for start in reversed(starts):
        ends.append(int(start[ends[-1]]))
    return ranges(np.diff(ends[::-1]).tolist())


def _add_stage(
    best: np.ndarray,
    cost_to: np.ndarray,
    need_to: np.ndarray,
    speed: float,
    offer: float,
    known: float,
) -> tuple[np.ndarray, np.ndarray]:
    """One more stage: the new `best`, and where its last stage starts, for every end j."""
    layers = len(cost_to) - 1
    # The most layers that this stage can hold anywhere: none wider costs at most `known` and fits.
    ends = np.searchsorted(cost_to, cost_to[:-1] + known * speed * ROUNDING, side="right") - 1
    ends = np.minimum(
        ends, np.searchsorted(need_to, need_to[:-1] + offer * ROUNDING, side="right") - 1
    )
    width = int((ends - np.arange(layers)).max(initial=0))
    new, start = np.full(layers + 1, np.inf), np.zeros(layers + 1, dtype=int)
    if width < 1:
        return new, start
    # Row j, column w: the stage holds the w + 1 layers before j. Rows before the first layer are
    # padding.
    i = np.arange(layers + 1)[:, None] - 1 - np.arange(width)[None, :]
    inside = i >= 0
    i = np.maximum(i, 0)
    cost = (cost_to[:, None] - cost_to[i]) / speed
    fits = inside & (need_to[:, None] - need_to[i] <= offer * ROUNDING)
    candidate = np.where(fits, np.maximum(best[i], cost), np.inf)
    choice = candidate.argmin(axis=1)
    rows = np.arange(layers + 1)
    return candidate[rows, choice], i[rows, choice]


def _some_bottleneck(
    cost_to: np.ndarray, need_to: np.ndarray, speed: np.ndarray, offers: np.ndarray, least: float
) -> tuple[float, Split | None]:
    """A bottleneck that some split keeps to, and that split, by filling stages in turn; or infinity."""
    target = least
    for _ in range(80):
        split = _fill_in_turn(cost_to, need_to, speed, offers, target)
        if split is not None:
            return target, split
        target = max(target * 1.2, 1e-300)
    return np.inf, None


def _fill_in_turn(
    cost_to: np.ndarray, need_to: np.ndarray, speeds: np.ndarray, offers: np.ndarray, target: float
) -> Split | None:
    """Give every stage as much as `target` and memory allow, leaving a layer for each later stage."""
    layers, stages, ends = len(cost_to) - 1, len(speeds), [0]
    for stage in range(stages):
        at = ends[-1]
        end = np.searchsorted(cost_to, cost_to[at] + target * speeds[stage], side="right") - 1
        end = min(end, np.searchsorted(need_to, need_to[at] + offers[stage], side="right") - 1)
        end = min(end, layers - (stages - stage - 1))
        if end <= at:
            return None
        ends.append(int(end))
    return ranges(np.diff(ends).tolist()) if ends[-1] == layers else None
