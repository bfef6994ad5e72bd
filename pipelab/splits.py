"""Contiguous splits of layers over stages, without asking which GPU: rules of thumb and the exact one.

`even`, `proportional`, `by_flops` and `bandwidth_aware` do what two published Rust programs
do (pmetal's layer_assignment.rs; a pipeline scheduler's partition functions), where those
answer sensibly. `minmax` is what they lacked: the best contiguous split, proven, by dynamic
programming. All return ranges that cover every layer once, at least one layer per stage.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import comb

import numpy as np

from pipelab.checked import given, is_real, whole_number
from pipelab.errors import InvalidValue, TooLarge

__all__ = [
    "bottleneck",
    "count_splits",
    "split_bandwidth_aware",
    "split_by_flops",
    "split_even",
    "split_exhaustive",
    "split_minmax",
    "split_proportional",
]

Split = tuple[range, ...]


def split_even(layers: int, stages: int) -> Split:
    """Equally many layers per stage; the remainder goes to the first stages, one each.

    Parameters
    ----------
    layers, stages : int
        At least one layer for every stage.

    Returns
    -------
    tuple of range
        Layers of each stage, numbered from 0.

    Raises
    ------
    InvalidValue
        Fewer than one stage, or fewer layers than stages.

    References
    ----------
    `partition_layers_evenly` of a Rust pipeline scheduler, published without a name.

    Examples
    --------
    >>> split_even(10, 3)
    (range(0, 4), range(4, 7), range(7, 10))
    """
    _check_sizes(layers, stages)
    base, remainder = divmod(layers, stages)
    return _ranges([base + (stage < remainder) for stage in range(stages)])


def split_proportional(layers: int, weights: Sequence[float]) -> Split:
    """Layers in proportion to weights (memory, say), every stage keeping at least one.

    Each stage gets its share rounded down, but at least 1; the layers left go to the largest
    remainders, the first of equal ones. (The published rule rounds in turn and leaves the
    rest to the last node, which gives ten layers on four twins as 3, 3, 3, 1.)

    Parameters
    ----------
    layers : int
        At least one for every stage.
    weights : sequence of float, one per stage
        Finite and above 0, in any unit; only ratios count.

    Returns
    -------
    tuple of range
        Layers of each stage, numbered from 0.

    Raises
    ------
    InvalidValue
        A weight is no such number, or there are fewer layers than weights.

    References
    ----------
    The published rule is of pmetal's `layer_assignment.rs`.

    Examples
    --------
    >>> split_proportional(32, [48_000, 16_000])
    (range(0, 24), range(24, 32))
    >>> [len(part) for part in split_proportional(10, [1, 1, 1, 1])]
    [3, 3, 2, 2]
    """
    _check_sizes(layers, len(weights))
    relative = np.array(_positive("weights", weights))
    relative = relative / relative.max()
    share = relative * (layers / relative.sum())
    sizes = np.maximum(1, np.floor(share * _ROUNDING)).astype(int)
    while sizes.sum() < layers:
        sizes[(share - sizes).argmax()] += 1
    while sizes.sum() > layers:  # those kept alive by the minimum of one are paid for by the most favoured
        sizes[np.where(sizes > 1, sizes - share, -np.inf).argmax()] -= 1
    return _ranges(sizes.tolist())


def split_by_flops(flops: Sequence[float], stages: int) -> Split:
    """Close a stage once it holds its fair share of the FLOPs, or when layers would run out.

    A rule of thumb: `[4, 4, 1]` over two stages gives 8 | 1, where 4 | 5 is possible.

    Parameters
    ----------
    flops : sequence of float, length M
        Of every layer, finite and at least 0, in any unit.
    stages : int
        At most M.

    Returns
    -------
    tuple of range
        Layers of each stage, numbered from 0.

    Raises
    ------
    InvalidValue
        An amount is no such number, or there are fewer layers than stages.

    References
    ----------
    `partition_layers_by_flops` of a Rust pipeline scheduler, published without a name.

    Examples
    --------
    >>> split_by_flops([100, 100, 100, 100, 400], 2)
    (range(0, 4), range(4, 5))
    """
    flops = _amounts("flops", flops)
    _check_sizes(len(flops), stages)
    sizes: list[int] = []
    share, held, size = sum(flops) / stages, 0.0, 0
    for layer, amount in enumerate(flops):
        held, size = held + amount, size + 1
        layers_left, stages_left = len(flops) - layer - 1, stages - len(sizes) - 1
        full = held * _ROUNDING >= share and layers_left >= stages_left
        if stages_left and (full or layers_left == stages_left):
            sizes.append(size)
            held, size = 0.0, 0
    return _ranges([*sizes, size])


def split_bandwidth_aware(layers: int, memory: Sequence[float], bandwidth: Sequence[float]) -> Split:
    """Two or three nodes: minimise the largest layers / bandwidth. More: proportional to memory × bandwidth.

    Parameters
    ----------
    layers : int
        At least one for every node.
    memory, bandwidth : sequences of float, one per node
        Finite and above 0, in any units; only ratios count.

    Returns
    -------
    tuple of range
        Layers of each node, numbered from 0.

    Raises
    ------
    InvalidValue
        An amount is no such number, the two differ in length, or there are fewer layers than nodes.

    References
    ----------
    The rule is of pmetal's `layer_assignment.rs`, which tries every split of two or three nodes.
    """
    memory, bandwidth = _positive("memory", memory), _positive("bandwidth", bandwidth)
    if len(memory) != len(bandwidth):
        problem = ("bandwidth", f"{len(bandwidth)} values", f"expected {len(memory)}, one per node")
        raise InvalidValue("split_bandwidth_aware", [problem])
    _check_sizes(layers, len(memory))
    if len(memory) in (2, 3):  # the published programs try every split; this finds one just as good
        return given(split_minmax([1.0] * layers, len(memory), speeds=bandwidth))
    return split_proportional(layers, [m * b for m, b in zip(memory, bandwidth, strict=True)])


def bottleneck(split: Split, costs: Sequence[float], speeds: Sequence[float] | None = None) -> float:
    """The largest stage cost: the sum of a stage's layer costs over the stage's speed.

    Parameters
    ----------
    split : sequence of range
        Layers of each stage, numbered from 0.
    costs : sequence of float, length M
        Of every layer.
    speeds : sequence of float, one per stage, optional
        1 by default.

    Returns
    -------
    float
        In the unit of the costs over that of the speeds.

    Raises
    ------
    InvalidValue
        There are not as many speeds as stages, a speed is not above 0, or a layer has no cost.
    """
    speeds = _speeds(speeds, len(split)).tolist()
    needed = max(part.stop for part in split)
    if len(costs) < needed:
        raise InvalidValue("bottleneck", [("costs", f"{len(costs)} values", f"expected at least {needed}")])
    return max(sum(costs[layer] for layer in part) / speed for part, speed in zip(split, speeds, strict=True))


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
    return comb(whole_number("count_splits", "layers", layers) - 1, whole_number("count_splits", "stages", stages) - 1)


def split_exhaustive(
    costs: Sequence[float], stages: int, *, speeds: Sequence[float] | None = None, limit: int = 2_000_000
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
    costs = _amounts("costs", costs)
    _check_sizes(len(costs), stages)
    speed = _speeds(speeds, stages)
    number = count_splits(len(costs), stages)
    if number > limit:
        advice = "split_minmax finds the best one without trying them"
        raise TooLarge(f"{number:,} splits of {len(costs)} layers over {stages} stages; {advice}", {"splits": number})
    total = np.concatenate([[0.0], np.cumsum(costs)])
    best, best_cost = np.array([0]), np.inf
    for cuts in combinations(range(1, len(costs)), stages - 1):
        ends = np.array([0, *cuts, len(costs)])
        cost = (np.diff(total[ends]) / speed).max()
        if cost < best_cost:
            best, best_cost = ends, cost
    return _ranges(np.diff(best).tolist())


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
    costs = _amounts("costs", costs)
    _check_sizes(len(costs), stages)
    speed = _speeds(speeds, stages)
    if (memory is None) != (limits is None):
        raise InvalidValue("split_minmax", [("limits", limits, "memory and limits go together")])
    needs = np.zeros(len(costs)) if memory is None else np.array(_amounts("memory", memory, len(costs)))
    offers = np.full(stages, np.inf) if limits is None else np.array(_amounts("limits", limits, stages))
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
    return _ranges(np.diff(ends[::-1]).tolist())


_ROUNDING = 1 + 1e-9  # sums of the same numbers in another order may differ in their last bits


def _add_stage(
    best: np.ndarray, cost_to: np.ndarray, need_to: np.ndarray, speed: float, offer: float, known: float
) -> tuple[np.ndarray, np.ndarray]:
    """One more stage: the new `best`, and where its last stage starts, for every end j."""
    layers = len(cost_to) - 1
    # The most layers that this stage can hold anywhere: none wider costs at most `known` and fits.
    ends = np.searchsorted(cost_to, cost_to[:-1] + known * speed * _ROUNDING, side="right") - 1
    ends = np.minimum(ends, np.searchsorted(need_to, need_to[:-1] + offer * _ROUNDING, side="right") - 1)
    width = int((ends - np.arange(layers)).max(initial=0))
    new, start = np.full(layers + 1, np.inf), np.zeros(layers + 1, dtype=int)
    if width < 1:
        return new, start
    # Row j, column w: the stage holds the w + 1 layers before j. Rows before the first layer are padding.
    i = np.arange(layers + 1)[:, None] - 1 - np.arange(width)[None, :]
    inside = i >= 0
    i = np.maximum(i, 0)
    cost = (cost_to[:, None] - cost_to[i]) / speed
    fits = inside & (need_to[:, None] - need_to[i] <= offer * _ROUNDING)
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
    return _ranges(np.diff(ends).tolist()) if ends[-1] == layers else None


def _ranges(sizes: Sequence[int]) -> Split:
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()
    return tuple(range(a, b) for a, b in pairwise(ends))


def _check_sizes(layers: int, stages: int) -> None:
    whole_number("split", "layers", layers)
    whole_number("split", "stages", stages)
    if stages > layers:
        raise InvalidValue("split", [("stages", stages, f"expected at most {layers}, so that every stage has a layer")])


def _amounts(name: str, values: Sequence[float], length: int | None = None) -> list[float]:
    """Numbers that are finite and at least 0."""
    bad: list[tuple[str, object, str]]
    bad = [(f"{name}[{i}]", v, "expected a finite number, at least 0") for i, v in enumerate(values)
           if not (is_real(v) and v >= 0)]  # fmt: skip
    if length is not None and len(values) != length:
        bad = [(name, f"{len(values)} values", f"expected {length}")]
    if bad:
        raise InvalidValue("split", bad[:1])
    return [float(v) for v in values]


def _positive(name: str, values: Sequence[float], length: int | None = None) -> list[float]:
    values = _amounts(name, values, length)
    bad = [(f"{name}[{i}]", v, "expected more than 0") for i, v in enumerate(values) if v == 0]
    if bad:
        raise InvalidValue("split", bad[:1])
    return values


def _speeds(speeds: Sequence[float] | None, stages: int) -> np.ndarray:
    return np.ones(stages) if speeds is None else np.array(_positive("speeds", speeds, stages))
