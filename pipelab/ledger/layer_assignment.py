"""What pmetal's `layer_assignment.rs` says of itself, in comments and tests."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import pipelab as pl
from pipelab import seeds
from pipelab.checked import given
from pipelab.ledger.claims import Claim
from pipelab.ledger.comparisons import EQUAL, NUMBERS, TEXT

if TYPE_CHECKING:
    from pipelab.ledger.desk import Desk

__all__ = ["CLAIMS"]

TESTS, HEAD, BANDWIDTH = "tests", "module comment", "assign_layers_bandwidth_aware"


def _sizes(split: Iterable[range]) -> tuple[int, ...]:
    return tuple(len(part) for part in split)


def _proportional(layers: int, memory: list[int]) -> "Callable[[Desk], Any]":
    return lambda desk: _sizes(seeds.seed_proportional(layers, memory))


def _by_bandwidth(layers: int, bandwidth: list[int]) -> "Callable[[Desk], Any]":
    return lambda desk: _sizes(seeds.seed_bandwidth_aware(layers, [16_000] * len(bandwidth), bandwidth))


def _bottlenecks(layers: int, bandwidth: Sequence[int]) -> tuple[float, float]:
    """The largest n / b of its split and of the best, over nodes of equal memory."""
    ones, megabytes = [1] * layers, [b * 10**6 for b in bandwidth]
    own = seeds.seed_bandwidth_aware(layers, [16 * 10**9] * len(bandwidth), megabytes)
    best = given(pl.split_minmax(ones, len(bandwidth), speeds=bandwidth))
    return round(pl.bottleneck(own, ones, bandwidth), 12), round(pl.bottleneck(best, ones, bandwidth), 12)


def _share_best(nodes: int) -> tuple[int, int]:
    """On how many inputs its split is the best there is, and on how many it was tried."""
    pairs = [_bottlenecks(layers, b) for b in product((1, 2, 3), repeat=nodes) for layers in range(nodes, 13)]
    return sum(own == best for own, best in pairs), len(pairs)


def _covers(nodes: int) -> tuple[int, int]:
    """Inputs on which every node has a layer and all layers are covered in order, and inputs tried."""
    inputs = [(layers, list(m)) for m in product((1, 2, 5), repeat=nodes) for layers in range(nodes, 13)]
    whole = 0
    for layers, memory in inputs:
        split = seeds.seed_proportional(layers, memory)
        whole += [x for part in split for x in part] == list(range(layers)) and all(split)
    return whole, len(inputs)


def _refused(layers: int, nodes: int, links: int) -> str:
    try:
        return f"{_sizes(seeds.seed_bandwidth_aware(layers, [16_000] * nodes, [100_000] * links))}"
    except seeds.Panic as panic:
        return f"panic: {panic}"


def _largest_deviation(layers: int, nodes: int) -> tuple[int, int]:
    """Fewest and most layers on equal nodes."""
    sizes = _sizes(seeds.seed_proportional(layers, [1] * nodes))
    return min(sizes), max(sizes)


def _exhaustive(layers: int, bandwidth: list[int]) -> tuple[float, float]:
    ones = [1] * layers
    tried = pl.split_exhaustive(ones, len(bandwidth), speeds=bandwidth)
    return pl.bottleneck(tried, ones, bandwidth), pl.bottleneck(
        given(pl.split_minmax(ones, len(bandwidth), speeds=bandwidth)), ones, bandwidth
    )


CLAIMS = (
    Claim(
        HEAD, "Proportional: layers proportional to available RAM (good default)", "evenly on equal nodes",
        lambda desk: _largest_deviation(10, 4), "fewest and most layers when 10 go to 4 equal nodes", "wrong", EQUAL,
        note="The last node takes what rounding leaves over: 3, 3, 3, 1.",
    ),
    Claim(
        HEAD, "Bandwidth-aware: minimize bottleneck link cost", "every input",
        lambda desk: _share_best(3), "three nodes: inputs whose n / b is the least possible, and inputs tried",
        "exact", EQUAL,
    ),
    Claim(
        HEAD, "With 2-4 nodes exhaustive search over contiguous splits is feasible", "it finds the optimum",
        lambda desk: _exhaustive(30, [1, 2, 3, 4]), "30 layers on 4 nodes: split_exhaustive and split_minmax",
        "exact", EQUAL,
    ),
    Claim(
        HEAD, "With 2-4 nodes … exhaustive search: the program does so on 4", "every input",
        lambda desk: _share_best(4), "four nodes: inputs whose n / b is the least possible, and inputs tried",
        "wrong", EQUAL,
        note="It does so on two and three; from four on, as a comment inside says, it weighs memory × bandwidth.",
    ),
    Claim(
        "assign_layers_proportional", "Returns contiguous, non-overlapping layer ranges that cover 0..num_layers",
        "every input", lambda desk: _covers(4), "inputs covered with a layer on every node, and inputs tried",
        "exact", EQUAL,
    ),
    Claim(
        BANDWIDTH, "bandwidths[i] is the link bandwidth from node i to node i+1", "n - 1 links for n nodes",
        lambda desk: _refused(30, 4, 3), "seed_bandwidth_aware with 4 nodes and their 3 links", "wrong", TEXT,
        note="It wants a bandwidth per node, and divides a node's layers by it.",
    ),
    Claim(
        BANDWIDTH, "Divide layers to minimize bottleneck latency, accounting for per-node bandwidth",
        "bandwidth counts",
        lambda desk: (
            _sizes(seeds.seed_bandwidth_aware(22, [16_000] * 4, [800_000, 100_000, 100_000, 100_000])),
            _sizes(pl.split_bandwidth_aware(22, [16_000] * 4, [800_000, 100_000, 100_000, 100_000])),
        ),
        "22 layers on four nodes, the first with a link 8 times as fast: its split and split_bandwidth_aware",
        "wrong", EQUAL, note="Bandwidth is counted in whole megabytes per second, at least 1.",
    ),
    Claim(
        "assert!", "more nodes ({world_size}) than layers ({num_layers}) are refused",
        "an error, or 3 nodes with layers",
        lambda desk: (len([n for n in _sizes(seeds.seed_bandwidth_aware(2, [1] * 3, [1] * 3)) if n]), 3),
        "2 layers on 3 nodes by bandwidth: nodes that get any, and nodes", "wrong", EQUAL,
        note="Only the proportional rule asserts it.",
    ),
    Claim(TESTS, "proportional_equal: 32 layers, equal RAM → 0..16, 16..32", "16 and 16",
          _proportional(32, [16_000, 16_000]), "seed_proportional", "exact", NUMBERS),
    Claim(TESTS, "proportional_3x1: 32 layers, RAM 3 : 1 → 0..24, 24..32", "24 and 8",
          _proportional(32, [48_000, 16_000]), "seed_proportional", "exact", NUMBERS),
    Claim(TESTS, "proportional_three_equal: 30 layers → 10, 10, 10", "10, 10 and 10",
          _proportional(30, [16_000] * 3), "seed_proportional", "exact", NUMBERS),
    Claim(TESTS, "bandwidth_two_nodes: 2x bandwidth should get ~2x layers; faster node should get more layers",
          "20 and 10", _by_bandwidth(30, [200_000, 100_000]), "seed_bandwidth_aware", "exact", NUMBERS),
    Claim(
        TESTS, "bandwidth_three_nodes: contiguous, from 0 to 30", "30 layers",
        lambda desk: sum(_sizes(seeds.seed_bandwidth_aware(30, [16_000] * 3, [100_000] * 3))),
        "seed_bandwidth_aware, layers in all", "exact", NUMBERS,
    ),
    Claim(
        TESTS, "minimum_one_layer_per_node: 4 layers on 4 nodes", "1, 1, 1 and 1",
        _proportional(4, [100] * 4), "seed_proportional", "exact",
    ),
)  # fmt: skip
