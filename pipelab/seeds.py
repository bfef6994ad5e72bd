"""Four partition functions as published, faults included, so that a notebook can show where they break.

Restated from two Rust programs: pmetal's `layer_assignment.rs` (proportional, bandwidth-aware)
and a pipeline scheduler's `partition_layers_evenly` and `partition_layers_by_flops`. Numbers
are unsigned 64-bit there, so that sums overflow; where the original would stop with a
panic, `Panic` is raised with its cause. The mended versions are in `splits/`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

__all__ = [
    "Failure",
    "Panic",
    "seed_bandwidth_aware",
    "seed_by_flops",
    "seed_even",
    "seed_proportional",
    "smallest_failure",
]

Split = tuple[range, ...]
_U64 = 2**64


class Panic(Exception):
    """The original program would stop here."""


class Failure(NamedTuple):
    """The first input on which a function fails, and how."""

    arguments: tuple
    what: str


def seed_proportional(layers: int, memory: Sequence[int]) -> Split:
    """pmetal's `assign_layers_proportional`."""
    nodes = len(memory)
    if nodes == 0 or layers == 0 or layers < nodes:
        raise Panic("assertion failed: layers and nodes at least one, no more nodes than layers")
    if nodes == 1:
        return (range(layers),)
    total = _unsigned(sum(memory), "sum of memory")
    parts, start = [], 0
    for i, amount in enumerate(memory[:-1]):
        share = amount / total if total else float("nan")
        most = layers - start - (nodes - i - 1)
        # Rust turns NaN into 0 and rounds halves away from zero.
        count = int(share * layers + 0.5) if share == share else 0
        count = min(max(count, 1), most)
        parts.append(range(start, start + count))
        start += count
    return (*parts, range(start, layers))


def seed_bandwidth_aware(layers: int, memory: Sequence[int], bandwidth: Sequence[int]) -> Split:
    """pmetal's `assign_layers_bandwidth_aware`; memory in bytes, bandwidth in bytes/s."""
    nodes = len(memory)
    if nodes != len(bandwidth):
        raise Panic("assertion failed: as many bandwidths as nodes")
    if nodes <= 1:
        return seed_proportional(layers, memory)
    if nodes == 2:
        return _two_nodes(layers, bandwidth)
    if nodes == 3:
        return _three_nodes(layers, bandwidth)
    megabytes = [(max(m // 10**6, 1), max(b // 10**6, 1)) for m, b in zip(memory, bandwidth, strict=True)]
    return seed_proportional(layers, [_unsigned(m * b, "memory × bandwidth") for m, b in megabytes])


def _two_nodes(layers: int, bandwidth: Sequence[int]) -> Split:
    best, best_cost = 1, float("inf")
    for split in range(1, layers):
        cost = max(split / max(bandwidth[0], 1), (layers - split) / max(bandwidth[1], 1))
        if cost < best_cost:
            best, best_cost = split, cost
    return range(best), range(best, layers)


def _three_nodes(layers: int, bandwidth: Sequence[int]) -> Split:
    b0, b1, b2 = (max(b, 1) for b in bandwidth)
    best, best_cost = (1, 2), float("inf")
    for s1 in range(1, _unsigned(layers - 1, "layers - 1")):
        for s2 in range(s1 + 1, layers):
            cost = max(s1 / b0, (s2 - s1) / b1, (layers - s2) / b2)
            if cost < best_cost:
                best, best_cost = (s1, s2), cost
    return range(best[0]), range(*best), range(best[1], layers)


def seed_even(layers: int, stages: int) -> Split:
    """The scheduler's `partition_layers_evenly`; an empty result where it gives none."""
    if stages == 0 or layers == 0:
        return ()
    base, remainder = divmod(layers, stages)
    parts, start = [], 0
    for stage in range(stages):
        parts.append(range(start, start + base + (stage < remainder)))
        start = parts[-1].stop
    return tuple(parts)


def seed_by_flops(flops: Sequence[int], stages: int) -> Split:
    """The scheduler's `partition_layers_by_flops`."""
    layers = len(flops)
    if stages == 0 or layers == 0:
        return ()
    if stages == 1:
        return (range(layers),)
    total = _unsigned(sum(flops), "sum of FLOPs")
    target = _unsigned(total + stages - 1, "sum of FLOPs + stages") // stages
    boundaries, held = [0], 0
    for layer, amount in enumerate(flops):
        held += amount
        enough_left = layers - layer - 1 >= stages - len(boundaries)
        if held >= target and len(boundaries) < stages and enough_left:
            boundaries.append(layer + 1)
            held = 0
    if len(boundaries) < stages:
        raise Panic(f"index out of bounds: the length is {len(boundaries)} but the index is {len(boundaries)}")
    return tuple(range(a, b) for a, b in zip(boundaries, [*boundaries[1:], layers], strict=True))


def smallest_failure(function: Callable, inputs: Iterable[tuple]) -> Failure | None:
    """The first of `inputs` (smallest first) on which a seed's function panics or leaves a stage without layers.

    Examples
    --------
    >>> smallest_failure(seed_by_flops, [([1, 1], 2), ([1, 2], 2)])
    Failure(arguments=([1, 2], 2), what='panic: index out of bounds: the length is 1 but the index is 1')
    """
    for arguments in inputs:
        try:
            split = function(*arguments)
        except Panic as panic:
            return Failure(arguments, f"panic: {panic}")
        if not split:
            return Failure(arguments, "an empty answer instead of an error")
        empty = [i + 1 for i, part in enumerate(split) if part.stop <= part.start]
        if empty:
            return Failure(arguments, f"stage {empty[0]} has no layer")
    return None


def _unsigned(value: int, what: str) -> int:
    if not 0 <= value < _U64:
        raise Panic(f"attempt to {'subtract' if value < 0 else 'add or multiply'} with overflow: {what}")
    return value
