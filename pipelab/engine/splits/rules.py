"""Rules of thumb: what two published Rust programs do where they answer sensibly.

pmetal's layer_assignment.rs, and a pipeline scheduler's partition functions; `course/` has them
with their faults.
"""

from collections.abc import Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush

import numpy as np

from pipelab.engine.splits.split import ROUNDING, Split, amounts, check_sizes, positive, ranges
from pipelab.errors import InvalidValue

__all__ = ["split_bandwidth_aware", "split_by_flops", "split_even", "split_proportional"]


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
    `partition_layers_evenly` of trustformers-core 0.1.1, `gpipe_pp.rs`.

    Examples
    --------
    >>> split_even(10, 3)
    (range(0, 4), range(4, 7), range(7, 10))
    """
    check_sizes(layers, stages)
    base, remainder = divmod(layers, stages)
    return ranges([base + (stage < remainder) for stage in range(stages)])


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
    check_sizes(layers, len(weights))
    relative = np.array(positive("weights", weights))
    relative = relative / relative.max()
    share = relative * (layers / relative.sum())
    sizes = np.maximum(1, np.floor(share * ROUNDING)).astype(int)
    while sizes.sum() < layers:
        sizes[(share - sizes).argmax()] += 1
    # those kept alive by the minimum of one are paid for by the most favoured
    while sizes.sum() > layers:
        sizes[np.where(sizes > 1, sizes - share, -np.inf).argmax()] -= 1
    return ranges(sizes.tolist())


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
    `partition_layers_by_flops` of trustformers-core 0.1.1, `gpipe_pp.rs`.

    Examples
    --------
    >>> split_by_flops([100, 100, 100, 100, 400], 2)
    (range(0, 4), range(4, 5))
    """
    flops = amounts("flops", flops)
    check_sizes(len(flops), stages)
    sizes: list[int] = []
    share, held, size = sum(flops) / stages, 0.0, 0
    for layer, amount in enumerate(flops):
        held, size = held + amount, size + 1
        layers_left, stages_left = len(flops) - layer - 1, stages - len(sizes) - 1
        full = held * ROUNDING >= share and layers_left >= stages_left
        if stages_left and (full or layers_left == stages_left):
            sizes.append(size)
            held, size = 0.0, 0
    return ranges([*sizes, size])


def split_bandwidth_aware(
    layers: int,
    memory: Sequence[float],
    bandwidth: Sequence[float],
    *,
    layer_memory: float | None = None,
) -> Split:
    """The least of the largest layers / bandwidth, within what each node's memory holds.

    Memory is a limit and no weight: however fast a node's link, it gets no more layers than fit.
    Where the memory of a layer is not given, all layers together are taken to fill half of all
    memory; a node then gets at most twice its share by memory (but at least one layer, as every
    node does).

    Parameters
    ----------
    layers : int
        At least one for every node.
    memory, bandwidth : sequences of float, one per node
        Finite and above 0, in any units; only ratios count.
    layer_memory : float, optional
        Memory that one layer needs, in the unit of `memory`; above 0.

    Returns
    -------
    tuple of range
        Layers of each node, numbered from 0.

    Raises
    ------
    InvalidValue
        An amount is no such number, the two differ in length, there are fewer layers than nodes, or
        layers of this size do not fit.

    Notes
    -----
    No other split within these limits has a smaller largest layers / bandwidth. It is still a rule
    of thumb: a message is as large after one layer as after ten, so layers / bandwidth is no time;
    how fast a node computes is not asked; and where layers need less memory than is assumed, a
    split beyond twice a node's share can be better.

    References
    ----------
    The rule is of pmetal's `layer_assignment.rs`, which reads memory from four nodes on, as a
    weight.

    Examples
    --------
    >>> split_bandwidth_aware(30, [16, 16], [200, 100])
    (range(0, 20), range(20, 30))
    >>> split_bandwidth_aware(30, [1, 1000], [200, 100])  # no room on the first, whatever its link
    (range(0, 1), range(1, 30))
    """
    memory, bandwidth = positive("memory", memory), positive("bandwidth", bandwidth)
    if len(memory) != len(bandwidth):
        problem = ("bandwidth", f"{len(bandwidth)} values", f"expected {len(memory)}, one per node")
        raise InvalidValue("split_bandwidth_aware", [problem])
    check_sizes(layers, len(memory))
    most = _most_layers(layers, memory, layer_memory)
    # as floats, quotients may overflow
    sizes, speeds = [1] * len(memory), [Fraction(speed) for speed in bandwidth]
    room = [(2 / speed, node) for node, speed in enumerate(speeds) if most[node] > 1]
    heapify(room)
    # the next layer where it costs least; all cost the same, so this is exact
    for _ in range(layers - len(memory)):
        _, node = heappop(room)
        sizes[node] += 1
        if sizes[node] < most[node]:
            heappush(room, ((sizes[node] + 1) / speeds[node], node))
    return ranges(sizes)


def _most_layers(layers: int, memory: Sequence[float], layer_memory: float | None) -> np.ndarray:
    """How many layers each node holds, (nodes,) whole numbers; together at least `layers`."""
    share = np.array(memory) / max(memory)
    if layer_memory is None:
        return np.maximum(1, np.floor(share * (2 * layers / share.sum()) * ROUNDING))
    (need,) = positive("layer_memory", [layer_memory])
    with np.errstate(over="ignore"):  # more than a float can count is more than all layers
        most = np.minimum(np.floor(np.array(memory) / need * ROUNDING), layers)
    if most.min() < 1 or most.sum() < layers:
        fit = ", ".join(f"{number:g}" for number in most[:8]) + ", …" * (len(most) > 8)
        expected = f"expected less: the nodes can hold {fit} of {layers} layers; every node needs at least one"
        raise InvalidValue("split_bandwidth_aware", [("layer_memory", layer_memory, expected)])
    return most
