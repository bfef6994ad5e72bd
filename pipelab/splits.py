"""Which layers on which stage: six ways to cut L layers into consecutive stages.

A split gives every stage at least one layer and every layer to one stage. It says nothing about
GPUs. A stage costs the sum of its layers' costs, divided by its speed. The slowest stage sets the
pace of a pipeline, so the best split has the smallest bottleneck. Four rules of thumb come first,
then the best split: found by trying all of them, and by dynamic programming.
The rules are those of `gpipe_pp.rs` in trustformers-core 0.1.1 (even, by FLOPs) and of pmetal's
`layer_assignment.rs` (proportional, bandwidth-aware), without their faults.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import accumulate, combinations, pairwise
from math import comb, inf

import numpy as np

from pipelab.errors import InvalidValue, TooLarge
from pipelab.fields import amounts, is_list, python_value, whole_number

__all__ = [
    "bottleneck", "count_splits", "split_bandwidth_aware", "split_by_flops", "split_even",
    "split_exhaustive", "split_minmax", "split_proportional",
]  # fmt: skip

Split = tuple[range, ...]
Numbers = Sequence[float]
ROUNDING = 1 + 1e-9  # sums of the same numbers in another order may differ in their last bits


def bottleneck(split: Split, costs: Numbers, speeds: Numbers | None = None) -> float:
    """Compute the cost of the slowest stage.

    Parameters
    ----------
    split : sequence of range
        Layers of each stage, numbered from 0.
    costs : sequence of float, length L
        Cost of every layer.
    speeds : sequence of float, one per stage, optional
        1 by default.

    Returns
    -------
    float
        In the unit of the costs over that of the speeds.

    Raises
    ------
    InvalidValue
        `split` has no stage, or one that is not a range; there are not as many speeds as stages, a
        speed is not above 0, or a layer has no cost.

    Examples
    --------
    >>> bottleneck((range(0, 2), range(2, 3)), [4, 4, 1])
    8.0
    """
    if not is_list(split) or not len(split) or not all(isinstance(part, range) for part in split):
        raise InvalidValue("bottleneck", [("split", split, "expected a range of layers per stage")])
    needed = max(part.stop for part in split)
    if len(costs) < needed:
        problem = ("costs", f"{len(costs)} values", f"expected at least {needed}")
        raise InvalidValue("bottleneck", [problem])
    stages = zip(split, _speeds(speeds, len(split)), strict=True)
    return python_value(max(sum(costs[i] for i in part) / speed for part, speed in stages))


def split_even(layers: int, stages: int) -> Split:
    """Give every stage equally many layers; the remainder goes to the first stages, one each.

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

    Examples
    --------
    >>> split_even(10, 3)
    (range(0, 4), range(4, 7), range(7, 10))
    """
    _check_sizes(layers, stages)
    share, remainder = divmod(layers, stages)
    return _ranges(stage * share + min(stage, remainder) for stage in range(stages + 1))


def split_proportional(layers: int, weights: Numbers) -> Split:
    """Cut layers in proportion to weights (memory, say); every stage keeps at least one.

    Shares are rounded down, to at least 1. The layers left over go to the largest remainders.

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
        A weight is not such a number, or there are fewer layers than weights.

    Examples
    --------
    >>> split_proportional(32, [48_000, 16_000])
    (range(0, 24), range(24, 32))
    """
    _check_sizes(layers, len(weights))
    relative = np.array(amounts("split", "weights", weights, positive=True))
    relative /= relative.max()  # no sum can overflow
    share = relative * (layers / relative.sum())
    sizes = np.maximum(1, np.floor(share * ROUNDING)).astype(int)
    while sizes.sum() < layers:
        sizes[(share - sizes).argmax()] += 1
    while sizes.sum() > layers:  # the minimum of one layer is paid for by the most favoured
        sizes[np.where(sizes > 1, sizes - share, -inf).argmax()] -= 1
    return _ranges(accumulate(sizes.tolist(), initial=0))


def split_by_flops(flops: Numbers, stages: int) -> Split:
    """Close a stage once it holds its fair share of the FLOPs, or when layers would run out.

    Parameters
    ----------
    flops : sequence of float, length L
        Of every layer, finite and at least 0, in any unit.
    stages : int
        At most L.

    Returns
    -------
    tuple of range
        Layers of each stage, numbered from 0.

    Raises
    ------
    InvalidValue
        An amount is not such a number, or there are fewer layers than stages.

    Examples
    --------
    >>> split_by_flops([4, 4, 1], 2)  # costs 8 | 1, where 4 | 5 is possible
    (range(0, 2), range(2, 3))
    """
    flops = amounts("split", "flops", flops)
    _check_sizes(len(flops), stages)
    share, held, ends = sum(flops) / stages, 0.0, [0]
    for layer, amount in enumerate(flops):
        held += amount
        layers_left, stages_left = len(flops) - layer - 1, stages - len(ends)
        full = held * ROUNDING >= share and layers_left >= stages_left
        if stages_left and (full or layers_left == stages_left):
            ends.append(layer + 1)
            held = 0.0
    return _ranges([*ends, len(flops)])


def split_bandwidth_aware(layers: int, memory: Numbers, bandwidth: Numbers) -> Split:
    """Cut for the least of the largest layers / bandwidth, within what each node's memory holds.

    All layers are taken to fill half of all memory. So a node gets at most twice its share by memory,
    however fast its link, but at least one layer; where layers need less, a split beyond these limits
    can be better. It is a rule of thumb: a message is as large after one layer as after ten, so
    layers / bandwidth is no time.

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
        An amount is not such a number, or numbers are missing.

    Examples
    --------
    >>> split_bandwidth_aware(30, [1, 1000], [200, 100])  # no room on the first, whatever its link
    (range(0, 1), range(1, 30))
    """
    _check_sizes(layers, len(memory))
    memory = amounts("split", "memory", memory, positive=True)
    bandwidth = amounts("split", "bandwidth", bandwidth, len(memory), positive=True)
    # fractions, as quotients of floats may overflow
    size, speeds = [Fraction(amount) for amount in memory], [Fraction(rate) for rate in bandwidth]
    double_share = 2 * layers / sum(size) * Fraction(ROUNDING)
    most = [max(1, int(amount * double_share)) for amount in size]
    sizes = [1] * len(memory)
    with_room = [(2 / speed, node) for node, speed in enumerate(speeds) if most[node] > 1]
    heapify(with_room)
    for _ in range(layers - len(memory)):  # the next layer goes where it costs least
        _, node = heappop(with_room)
        sizes[node] += 1
        if sizes[node] < most[node]:
            heappush(with_room, ((sizes[node] + 1) / speeds[node], node))
    return _ranges(accumulate(sizes, initial=0))


def count_splits(layers: int, stages: int) -> int:
    """Count the splits there are: choices of stages - 1 of the layers - 1 boundaries.

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
        A number is not a whole number of at least 1.

    Examples
    --------
    >>> count_splits(80, 8)
    2898753715
    """
    boundaries = whole_number("count_splits", "layers", layers) - 1
    return comb(boundaries, whole_number("count_splits", "stages", stages) - 1)


def split_exhaustive(
    costs: Numbers, stages: int, *, speeds: Numbers | None = None, limit: int = 2_000_000
) -> Split:
    """Try every split, earliest boundaries first, and keep the first of the best.

    Parameters
    ----------
    costs : sequence of float, length L
        Of every layer, finite and at least 0.
    stages : int
        At most L.
    speeds : sequence of float, one per stage, optional
        1 by default.
    limit : int
        Largest number of splits to try.

    Returns
    -------
    tuple of range
        Layers of each stage, numbered from 0.

    Raises
    ------
    TooLarge
        There are more than `limit`; the message says how many.
    InvalidValue
        A number or length does not fit.

    Examples
    --------
    >>> split_exhaustive([4, 4, 1], 2)
    (range(0, 1), range(1, 3))
    """
    costs = amounts("split", "costs", costs)
    _check_sizes(len(costs), stages)
    speed = np.array(_speeds(speeds, stages))
    number = count_splits(len(costs), stages)
    if number > limit:
        text = f"{number:,} splits of {len(costs)} layers over {stages} stages"
        raise TooLarge(f"{text}; split_minmax does not try them")
    cost_to = np.cumsum([0.0, *costs])
    splits = ([0, *cuts, len(costs)] for cuts in combinations(range(1, len(costs)), stages - 1))
    return _ranges(min(splits, key=lambda ends: (np.diff(cost_to[np.array(ends)]) / speed).max()))


def split_minmax(
    costs: Numbers,
    stages: int,
    *,
    speeds: Numbers | None = None,
    memory: Numbers | None = None,
    limits: Numbers | None = None,
) -> Split | None:
    """Find the split with the smallest bottleneck, exactly, by dynamic programming.

    Let best[s][j] be the smallest bottleneck of the first j layers on the first s stages. If stage
    s starts at layer i, what comes before it is a smaller problem of the same kind::

        best[s][j] = min over i < j of max(best[s-1][i], (cost of layers i … j-1) / speed of s)

    That takes L² · stages / 2 steps, a second for 1,000 layers on 64 stages.

    Parameters
    ----------
    costs : sequence of float, length L
        Cost of every layer, finite and at least 0.
    stages : int
        At most L.
    speeds : sequence of float, one per stage, optional
        1 by default.
    memory : sequence of float, length L, optional
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

    Examples
    --------
    >>> split_minmax([1, 1, 1, 1], 2, speeds=[3, 1])
    (range(0, 3), range(3, 4))
    """
    layers = len(costs := amounts("split", "costs", costs))
    _check_sizes(layers, stages)
    if (memory is None) != (limits is None):
        raise InvalidValue("split_minmax", [("limits", limits, "memory and limits go together")])
    needs = [0.0] * layers if memory is None else amounts("split", "memory", memory, layers)
    room = [inf] * stages if limits is None else amounts("split", "limits", limits, stages)
    cost_to, need_to = np.cumsum([0.0, *costs]), np.cumsum([0.0, *needs])
    best = np.where(np.arange(layers + 1) == 0, 0.0, inf)  # no stage holds no layer, and no other
    starts = np.zeros((stages, layers + 1), dtype=int)
    for stage, speed in enumerate(_speeds(speeds, stages)):
        before, best = best, np.full(layers + 1, inf)
        for j in range(stage + 1, layers + 1):
            cost = np.maximum(before[:j], (cost_to[j] - cost_to[:j]) / speed)
            cost[need_to[j] - need_to[:j] > room[stage] * ROUNDING] = inf
            starts[stage, j] = cost.argmin()
            best[j] = cost.min()
    if best[layers] == inf:
        return None
    ends = [layers]  # the last stage ends at the last layer, each one before where the next starts
    for start in starts[::-1]:
        ends.append(int(start[ends[-1]]))
    return _ranges(reversed(ends))


def _ranges(ends: Iterable[int]) -> Split:
    """Make stages between neighbouring ends; the first end is 0."""
    return tuple(range(a, b) for a, b in pairwise(ends))


def _check_sizes(layers: int, stages: int) -> None:
    whole_number("split", "layers", layers)
    whole_number("split", "stages", stages)
    if stages > layers:
        expected = f"expected at most {layers}, so that every stage has a layer"
        raise InvalidValue("split", [("stages", stages, expected)])


def _speeds(speeds: Numbers | None, stages: int) -> list[float]:
    given = [1.0] * stages if speeds is None else speeds
    return amounts("split", "speeds", given, stages, positive=True)
