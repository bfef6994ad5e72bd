"""The faults of pmetal's layer_assignment.rs: by name, where to look for each, and what happens there."""

from collections.abc import Callable, Iterable
from itertools import product

from pipelab.course.fault_search import lists, panics, sizes
from pipelab.course.published_layer_assignment import (
    assign_layers_bandwidth_aware,
    assign_layers_proportional,
)
from pipelab.splits import bottleneck, split_minmax

_MB = 10**6


def _alike(nodes: Iterable[int], layers: Iterable[int]) -> list[tuple]:
    return [(n, [1] * k, [1] * k) for n, k in product(layers, nodes)]


def _memory_unused(layers: int, memory: list[int], bandwidth: list[int]) -> str | None:
    first, second = sizes(assign_layers_bandwidth_aware(layers, memory, bandwidth))
    wrong = (first - second) * (memory[0] - memory[1]) < 0
    return f"{first} and {second} layers, the more where there is less memory" if wrong else None


def _not_weighted(layers: int, memory: list[int]) -> str | None:
    own = sizes(assign_layers_bandwidth_aware(layers, [m * _MB for m in memory], [_MB] * 3))
    weighed = sizes(assign_layers_proportional(layers, memory))
    return f"{own}, not {weighed} as the comment says" if own != weighed else None


def _left_empty(layers: int, memory: list[int], bandwidth: list[int]) -> str | None:
    held = sizes(assign_layers_bandwidth_aware(layers, memory, bandwidth))
    return f"{held}: a node without a layer" if 0 in held else None


def _invented(layers: int, memory: list[int], bandwidth: list[int]) -> str | None:
    ends = [part.stop for part in assign_layers_bandwidth_aware(layers, memory, bandwidth)]
    return f"ranges that end at {ends}, of {layers} layers" if max(ends) > layers else None


def _uneven(layers: int, memory: list[int]) -> str | None:
    held = sizes(assign_layers_proportional(layers, memory))
    return f"{held} on equal nodes" if max(held) - min(held) > 1 else None


def _truncated(layers: int, bandwidth: list[int]) -> str | None:
    own = sizes(assign_layers_bandwidth_aware(layers, [1] * 4, bandwidth))
    exact = sizes(assign_layers_proportional(layers, bandwidth))
    return f"{own}; in proportion it would be {exact}" if own != exact else None


def _outweighed(layers: int, memory: list[int], bandwidth: list[int]) -> str | None:
    megabytes = ([each * _MB for each in given] for given in (memory, bandwidth))
    held = sizes(assign_layers_bandwidth_aware(layers, *megabytes))
    return f"{held}: most where there is least memory" if held[0] > max(held[1:]) else None


def _no_search(layers: int, bandwidth: list[int]) -> str | None:
    own = assign_layers_bandwidth_aware(layers, [_MB] * 4, [b * _MB for b in bandwidth])
    best = split_minmax([1] * layers, 4, speeds=bandwidth)
    theirs, least = (bottleneck(split, [1] * layers, bandwidth) for split in (own, best or own))
    return (
        f"{sizes(own)}: {theirs:g} layers per bandwidth, {least:g} is possible"
        if theirs > least
        else None
    )


# name → (inputs to search, what is wrong on an input or None)
LAYER_ASSIGNMENT_FAULTS: dict[str, tuple[Callable, Callable]] = {
    "two or three nodes: available_ram is never used":
        (lambda: product(range(2, 6), lists(2, range(1, 4)), [[1, 1]]), _memory_unused),
    "three nodes: not weighted by bandwidth * ram, as the comment says of 3+ nodes":
        (lambda: product(range(3, 8), lists(3, range(1, 4))), _not_weighted),
    "two or three nodes: fewer layers than nodes are not refused":
        (lambda: _alike((2, 3), range(1, 4)), _left_empty),
    "two or three nodes: layers that do not exist are handed out":
        (lambda: _alike((2,), range(3)), _invented),
    "three nodes: zero layers panic by arithmetic, not by an assertion":
        (lambda: _alike((2, 3), range(3)), lambda *given: panics(assign_layers_bandwidth_aware, *given)),
    "four nodes or more: memory and bandwidth below a megabyte count as one":
        (lambda: product(range(4, 9), lists(4, (1, 2))), _truncated),
    "four nodes: no exhaustive search, which the comment calls feasible, and not its optimum":
        (lambda: product(range(4, 9), lists(4, range(1, 4))), _no_search),
    "four nodes or more: memory × bandwidth, or its sum, overflows":
        (lambda: [(4, [2**k] * 4, [2**k] * 4) for k in range(64)],
         lambda *given: panics(assign_layers_bandwidth_aware, *given)),
    "four nodes or more: a fast link outweighs a small memory":
        (lambda: product(range(4, 10), [[1, 2, 2, 2]], [[fast, 1, 1, 1] for fast in range(1, 5)]), _outweighed),
    "the last node, which has no link, needs a bandwidth":
        (lambda: [(n, [1] * n, [1] * links) for n in range(1, 5) for links in (n - 1, n)],
         lambda *given: panics(assign_layers_bandwidth_aware, *given)),
    "proportional: the last node pays for the rounding of all others":
        (lambda: [(n, [1] * k) for n, k in product(range(1, 13), range(1, 6)) if n >= k], _uneven),
    "proportional: zero memory on every node is not refused":
        (lambda: [(n, [0] * k) for n, k in product(range(1, 9), range(1, 4)) if n >= k], _uneven),
    "proportional: the sum of the memory overflows":
        (lambda: [(2, [2**k] * 2) for k in range(64)], lambda *given: panics(assign_layers_proportional, *given)),
}  # fmt: skip
