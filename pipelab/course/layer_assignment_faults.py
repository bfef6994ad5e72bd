"""The faults of pmetal's layer_assignment.rs: by name, what would have caught each, where to look, and what happens."""

from collections.abc import Callable, Iterable
from itertools import product

from pipelab.course.fault_search import (
    COMPLETE,
    REFUSES,
    SLOWER_TRUTH,
    lists,
    panicking,
    panics,
    sizes,
)
from pipelab.course.published_layer_assignment import (
    assign_layers_bandwidth_aware,
    assign_layers_proportional,
)
from pipelab.splits import (
    bottleneck,
    split_bandwidth_aware,
    split_even,
    split_minmax,
    split_proportional,
)

_MB = 10**6
Shown = tuple[str, str] | None


def _identical(nodes: Iterable[int], layers: Iterable[int]) -> list[tuple]:
    return [(n, [1] * k, [1] * k) for n, k in product(layers, nodes)]


def _memory_unused(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    first, second = sizes(assign_layers_bandwidth_aware(layers, memory, bandwidth))
    wrong = (first - second) * (memory[0] - memory[1]) < 0
    right = sizes(split_bandwidth_aware(layers, memory, bandwidth) or ())
    return (str([first, second]), str(right)) if wrong else None


def _not_weighted(layers: int, memory: list[int]) -> Shown:
    own = sizes(assign_layers_bandwidth_aware(layers, [m * _MB for m in memory], [_MB] * 3))
    weighed = sizes(assign_layers_proportional(layers, memory))
    return (str(own), f"{weighed}, as the comment says") if own != weighed else None


def _left_empty(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    held = sizes(assign_layers_bandwidth_aware(layers, memory, bandwidth))
    return (str(held), _too_few(layers, memory)) if 0 in held else None


def _invented(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    ends = [part.stop for part in assign_layers_bandwidth_aware(layers, memory, bandwidth)]
    right = _too_few(layers, memory)
    return (f"ranges that end at {ends}", right) if max(ends) > layers else None


def _no_layers(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    panic = panics(assign_layers_bandwidth_aware, layers, memory, bandwidth)
    return (panic, _too_few(layers, memory)) if panic else None


def _too_few(layers: int, memory: list[int]) -> str:
    """What its own proportional rule says there."""
    return str(panics(assign_layers_proportional, layers, memory)).replace("panic", "refused")


def _uneven(layers: int, memory: list[int]) -> Shown:
    held = sizes(assign_layers_proportional(layers, memory))
    right = sizes(split_even(layers, len(memory)))
    return (str(held), str(right)) if max(held) - min(held) > 1 else None


def _no_memory(layers: int, memory: list[int]) -> Shown:
    held = sizes(assign_layers_proportional(layers, memory))
    return (str(held), "refused: no memory") if max(held) - min(held) > 1 else None


def _truncated(layers: int, bandwidth: list[int]) -> Shown:
    own = sizes(assign_layers_bandwidth_aware(layers, [1] * 4, bandwidth))
    exact = sizes(assign_layers_proportional(layers, bandwidth))
    return (str(own), str(exact)) if own != exact else None


def _outweighed(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    megabytes = ([each * _MB for each in given] for given in (memory, bandwidth))
    held = sizes(assign_layers_bandwidth_aware(layers, *megabytes))
    right = "no more where there is less memory"
    return (str(held), right) if held[0] > max(held[1:]) else None


def _no_search(layers: int, bandwidth: list[int]) -> Shown:
    own = assign_layers_bandwidth_aware(layers, [_MB] * 4, [b * _MB for b in bandwidth])
    best = split_minmax([1] * layers, 4, speeds=bandwidth) or own
    theirs, least = (bottleneck(split, [1] * layers, bandwidth) for split in (own, best))
    told, right = (
        f"{sizes(split)}, layers / bandwidth up to {most:g}"
        for split, most in ((own, theirs), (best, least))
    )
    return (told, right) if theirs > least else None


def _one_each(layers: int, *_: list[int]) -> str:
    return str([1] * layers)


def _in_proportion(layers: int, memory: list[int], *_: list[int]) -> str:
    return str(sizes(split_proportional(layers, memory)))


# name → (what would have caught it, inputs to search, the answer on an input and the right one, or None)
LAYER_ASSIGNMENT_FAULTS: dict[str, tuple[str, Callable, Callable]] = {
    "two or three nodes: available_ram is never used":
        (SLOWER_TRUTH, lambda: product(range(2, 6), lists(2, range(1, 4)), [[1, 1]]), _memory_unused),
    "three nodes: not weighted by bandwidth * ram, as the comment says of 3+ nodes":
        (SLOWER_TRUTH, lambda: product(range(3, 8), lists(3, range(1, 4))), _not_weighted),
    "two or three nodes: fewer layers than nodes are not refused":
        (REFUSES, lambda: _identical((2, 3), range(1, 4)), _left_empty),
    "two or three nodes: layers that do not exist are handed out":
        (REFUSES, lambda: _identical((2,), range(3)), _invented),
    "three nodes: zero layers panic by arithmetic, not by an assertion":
        (REFUSES, lambda: _identical((2, 3), range(3)), _no_layers),
    "four nodes or more: memory and bandwidth below a megabyte count as one":
        (SLOWER_TRUTH, lambda: product(range(4, 9), lists(4, (1, 2))), _truncated),
    "four nodes: no exhaustive search, which the comment calls feasible, and not its optimum":
        (SLOWER_TRUTH, lambda: product(range(4, 9), lists(4, range(1, 4))), _no_search),
    "four nodes or more: memory × bandwidth, or its sum, overflows":
        (COMPLETE, lambda: [(4, [2**k] * 4, [2**k] * 4) for k in range(64)],
         panicking(assign_layers_bandwidth_aware, _one_each)),
    "four nodes or more: a fast link outweighs a small memory":
        (SLOWER_TRUTH, lambda: product(range(4, 10), [[1, 2, 2, 2]], [[fast, 1, 1, 1] for fast in range(1, 5)]),
         _outweighed),
    "the last node, which has no link, needs a bandwidth":
        (COMPLETE, lambda: [(n, [1] * n, [1] * links) for n in range(1, 5) for links in (n - 1, n)],
         panicking(assign_layers_bandwidth_aware, _one_each)),
    "proportional: the last node pays for the rounding of all others":
        (SLOWER_TRUTH, lambda: [(n, [1] * k) for n, k in product(range(1, 13), range(1, 6)) if n >= k], _uneven),
    "proportional: zero memory on every node is not refused":
        (REFUSES, lambda: [(n, [0] * k) for n, k in product(range(1, 9), range(1, 4)) if n >= k], _no_memory),
    "proportional: the sum of the memory overflows":
        (COMPLETE, lambda: [(2, [2**k] * 2) for k in range(64)], panicking(assign_layers_proportional, _in_proportion)),
}  # fmt: skip
