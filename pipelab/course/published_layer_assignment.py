"""pmetal's `layer_assignment.rs` as published, faults included: layers by memory, and by bandwidth.

Function by function in the order of the original; its faults are in `published_faults`. Where it
would stop with a panic, `Panic` is raised. The rules without the faults are `pl.split_proportional`
and `pl.split_bandwidth_aware`.
"""

from collections.abc import Sequence

from pipelab.course.rust_numbers import Panic, nearest_whole, unsigned

Split = tuple[range, ...]


def assign_layers_proportional(num_layers: int, available_ram: Sequence[int]) -> Split:
    """Layers in proportion to memory, rounded in turn; the last node gets what is left."""
    world_size = len(available_ram)
    if world_size == 0:
        raise Panic("need at least one node")
    if num_layers == 0:
        raise Panic("need at least one layer")
    if num_layers < world_size:
        raise Panic(f"more nodes ({world_size}) than layers ({num_layers})")
    if world_size == 1:
        return (range(num_layers),)
    total_ram = float(unsigned(sum(available_ram), "the sum of available_ram"))
    assignments, start = [], 0
    for i, ram in enumerate(available_ram[:-1]):
        proportion = float(ram) / total_ram if total_ram else float("nan")  # 0 / 0
        # leave a layer for each remaining node
        max_for_this = num_layers - start - (world_size - i - 1)
        count = min(max(nearest_whole(proportion * num_layers), 1), max_for_this)
        assignments.append(range(start, start + count))
        start += count
    return (*assignments, range(start, num_layers))


def assign_layers_bandwidth_aware(
    num_layers: int, available_ram: Sequence[int], bandwidths: Sequence[int]
) -> Split:
    """Two or three nodes: the least of the largest layers / bandwidth. More: in proportion to memory × bandwidth.

    In bytes and bytes per second; from four nodes on in whole megabytes, at least 1.
    """
    world_size = len(available_ram)
    if world_size != len(bandwidths):
        raise Panic(
            f"assertion `left == right` failed: left: {world_size}, right: {len(bandwidths)}"
        )
    if world_size <= 1:
        return assign_layers_proportional(num_layers, available_ram)
    if world_size == 2:
        return _assign_two_nodes(num_layers, bandwidths)
    if world_size == 3:
        return _assign_three_nodes(num_layers, bandwidths)
    megabytes = [
        (max(r // 10**6, 1), max(b // 10**6, 1))
        for r, b in zip(available_ram, bandwidths, strict=True)
    ]
    weights = [unsigned(r_mb * b_mb, "r_mb * b_mb") for r_mb, b_mb in megabytes]
    return assign_layers_proportional(num_layers, weights)


# The original hands available_ram to these two as well, under a name that says it is not used.


def _assign_two_nodes(num_layers: int, bandwidths: Sequence[int]) -> Split:
    b0, b1 = (float(max(b, 1)) for b in bandwidths)
    best_split, best_cost = 1, float("inf")
    for split in range(1, num_layers):
        cost = max(split / b0, (num_layers - split) / b1)
        if cost < best_cost:
            best_split, best_cost = split, cost
    return range(best_split), range(best_split, num_layers)


def _assign_three_nodes(num_layers: int, bandwidths: Sequence[int]) -> Split:
    b0, b1, b2 = (float(max(b, 1)) for b in bandwidths)
    best, best_cost = (1, 2), float("inf")
    for s1 in range(1, unsigned(num_layers - 1, "num_layers - 1")):
        for s2 in range(s1 + 1, num_layers):
            cost = max(s1 / b0, (s2 - s1) / b1, (num_layers - s2) / b2)
            if cost < best_cost:
                best, best_cost = (s1, s2), cost
    return range(best[0]), range(*best), range(best[1], num_layers)
