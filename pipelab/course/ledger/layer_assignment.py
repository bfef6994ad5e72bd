"""What pmetal's `layer_assignment.rs` says of itself, in comments and tests."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import pipelab as pl
from pipelab.course import published_layer_assignment as published
from pipelab.course.ledger.claims import FAILS, HOLDS, TRIED, Claim
from pipelab.course.ledger.comparisons import DIFFERENT, EQUAL, EVERY, NUMBERS, Trial, tried
from pipelab.course.rust_numbers import Panic
from pipelab.fields import given

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import SharedResults

TESTS, HEAD = "mod tests", "Layer assignment solvers"
PROPORTIONAL = "Divide num_layers across nodes proportionally to available_ram"
BANDWIDTH = "Divide layers to minimize bottleneck latency"


def _sizes(split: Iterable[range]) -> tuple[int, ...]:
    return tuple(len(part) for part in split)


def _cuts(split: Iterable[range]) -> tuple[int, ...]:
    """First layer and the one after the last, node by node."""
    return tuple(end for part in split for end in (part.start, part.stop))


def _proportional(layers: int, memory: list[int]) -> "Callable[[SharedResults], Any]":
    return lambda shared: _cuts(published.assign_layers_proportional(layers, memory))


def _by_bandwidth(layers: int, memory: list[int], bandwidth: list[int]) -> tuple[int, ...]:
    return _sizes(published.assign_layers_bandwidth_aware(layers, memory, bandwidth))


def _bottlenecks(layers: int, bandwidth: Sequence[int]) -> tuple[float, float]:
    """The largest n / b of its split and of the best, over nodes of equal memory."""
    ones, megabytes = [1] * layers, [b * 10**6 for b in bandwidth]
    own = published.assign_layers_bandwidth_aware(layers, [16 * 10**9] * len(bandwidth), megabytes)
    best = given(pl.split_minmax(ones, len(bandwidth), speeds=bandwidth))
    return round(pl.bottleneck(own, ones, bandwidth), 12), round(
        pl.bottleneck(best, ones, bandwidth), 12
    )


def _least(*nodes: int) -> Trial:
    """Bandwidths of 1 to 3, up to 8 layers: whether the largest n / b is the least possible."""
    inputs = (
        (layers, b) for n in nodes for b in product((1, 2, 3), repeat=n) for layers in range(n, 9)
    )
    return tried(
        (f"{layers} layers, bandwidths {list(b)}", own == best)
        for layers, b, (own, best) in ((*i, _bottlenecks(*i)) for i in inputs)
    )


def _even(shared: "SharedResults") -> Trial:
    """Equal nodes: no two differ by more than one layer."""
    spread = (
        (n, layers, _sizes(published.assign_layers_proportional(layers, [1] * n)))
        for n in range(2, 6)
        for layers in range(n, 21)
    )
    return tried(
        (f"{layers} layers on {n} equal nodes: {s}", max(s) - min(s) <= 1)
        for n, layers, s in spread
    )


def _covers(shared: "SharedResults") -> Trial:
    """Every layer once, in order, and none of the ranges overlaps the next."""

    def results() -> Iterator[tuple[str, bool]]:
        for nodes in range(1, 6):
            for memory in product((1, 2, 5), repeat=nodes):
                for layers in range(nodes, 13):
                    split = published.assign_layers_proportional(layers, list(memory))
                    whole = [x for part in split for x in part] == list(range(layers))
                    yield f"{layers} layers, memory {list(memory)}", whole

    return tried(results())


def _refused(rule: Callable, *arguments: Any) -> str:
    """Its answer, or the assertion at which it stops."""
    try:
        return f"{_sizes(rule(*arguments))}"
    except Panic as panic:
        return f"panic: {panic}"


def _exhaustive(shared: "SharedResults") -> Trial:
    """30 layers on two to four nodes: every split tried, beside dynamic programming."""
    ones = [1] * 30

    def least(speeds: Sequence[int]) -> bool:
        cuts = pl.split_exhaustive(ones, len(speeds), speeds=speeds)
        quick = given(pl.split_minmax(ones, len(speeds), speeds=speeds))
        return abs(pl.bottleneck(cuts, ones, speeds) - pl.bottleneck(quick, ones, speeds)) < 1e-9

    return tried(
        (f"bandwidths {s}", least(s))
        for s in ([1, 2], [3, 1], [1, 2, 3], [2, 2, 1], [1, 2, 3, 4], [4, 1, 1, 2])
    )


def _refuses(shared: "SharedResults") -> Trial:
    """More nodes than layers, up to eight nodes."""
    inputs = ((layers, nodes) for nodes in range(2, 9) for layers in range(1, nodes))
    answers = (
        (i, _refused(published.assign_layers_proportional, i[0], [1] * i[1])) for i in inputs
    )
    return tried((f"{i}", answer.startswith("panic")) for i, answer in answers)


def _links_only(shared: "SharedResults") -> Trial:
    """n nodes and the n - 1 links between them."""
    answers = (
        (
            n,
            _refused(
                published.assign_layers_bandwidth_aware, 30, [16_000] * n, [100_000] * (n - 1)
            ),
        )
        for n in range(2, 9)
    )
    return tried(
        (f"{n} nodes with {n - 1} links: {a}", not a.startswith("panic")) for n, a in answers
    )


def _twice(shared: "SharedResults") -> float:
    first, second = _by_bandwidth(30, [16_000] * 2, [200_000, 100_000])
    return first / second


def _contiguous(shared: "SharedResults") -> Trial:
    """Node by node: whether it begins where the one before ends, the first at 0 and the last to end with 30."""
    parts = published.assign_layers_bandwidth_aware(30, [16_000] * 3, [100_000] * 3)
    ends = [0, *(part.stop for part in parts)]
    begins = [*(part.start for part in parts), 30]
    return tried(
        ((f"layer {end}", end == begin) for end, begin in zip(ends, begins, strict=True)),
        whole=True,
    )


def _link_rates(shared: "SharedResults") -> tuple[float, float]:
    """transfers/s over the same link of tiny, behind one layer and behind three."""
    cuts = [pl.Placement.of([(n, (0,)), (shared.tiny.model.layers - n, (1,))]) for n in (1, 3)]
    before, after = (
        shared.once(pl.evaluate, shared.tiny, placement).links[0].throughput for placement in cuts
    )
    return before, after


CLAIMS = (
    Claim(
        HEAD, "Proportional: layers proportional to available RAM (good default)",
        "equal nodes differ by one layer at most", _even, "2 to 5 equal nodes, up to 20 layers, by seed_proportional",
        FAILS, EVERY, note="The last node takes what rounding leaves over.",
    ),
    Claim(
        HEAD, "Bandwidth-aware: minimize bottleneck link cost", "the largest n / b is the least possible",
        lambda shared: shared.once(_least, 2, 3, 4), "2 to 4 nodes, up to 8 layers, by seed_bandwidth_aware and "
        "split_minmax", FAILS, EVERY,
        note="On two and three nodes: {}. From four on it weighs memory × bandwidth instead.",
        known=lambda shared: (shared.once(_least, 2, 3),),
    ),
    Claim(
        HEAD, "With 2-4 nodes (typical Apple Silicon home cluster), exhaustive search over contiguous splits is "
        "feasible",
        "every split is tried, and the best is right", _exhaustive, "30 layers, split_exhaustive and split_minmax",
        TRIED, EVERY,
    ),
    Claim(
        PROPORTIONAL, "Returns contiguous, non-overlapping layer ranges that cover 0..num_layers",
        "every layer once, in order", _covers, "1 to 5 nodes, up to 12 layers, by seed_proportional", TRIED, EVERY,
    ),
    Claim(
        PROPORTIONAL, "more nodes ({world_size}) than layers ({num_layers})", "refused", _refuses,
        "2 to 8 nodes with fewer layers, by seed_proportional", TRIED, EVERY,
        note="The bandwidth-aware rule does not assert it: 2 layers on 3 nodes are cut into {}.",
        known=lambda shared: (_refused(published.assign_layers_bandwidth_aware, 2, [1] * 3, [1] * 3),),
    ),
    Claim(
        BANDWIDTH, "Divide layers to minimize bottleneck latency, accounting for per-node bandwidth",
        "a node with 8 times the bandwidth of the others gets another number of layers",
        lambda shared: tuple(
            _by_bandwidth(22, [16_000] * 4, [b, 100_000, 100_000, 100_000]) for b in (800_000, 100_000)
        ),
        "22 layers on four nodes with links in kilobytes per second, by seed_bandwidth_aware", FAILS, DIFFERENT,
        note="From four nodes on, bandwidth is counted in whole megabytes per second, at least 1.",
    ),
    Claim(
        BANDWIDTH, "bandwidths[i] is the link bandwidth (bytes/sec) from node i to node i+1", "n - 1 links for n nodes",
        _links_only, "2 to 8 nodes, by seed_bandwidth_aware", FAILS, EVERY,
        note="It wants a bandwidth per node, and divides a node's layers by it.",
    ),
    Claim(
        BANDWIDTH, "Nodes with higher bandwidth can handle the activation transfer cost of more layers",
        "what crosses a link depends on the layers before it", _link_rates,
        "transfers/s over one link of tiny, behind one layer and behind three, by evaluate", FAILS, DIFFERENT,
        note="One activation tensor crosses, however many layers made it.",
    ),
    Claim(
        BANDWIDTH, "For 2 nodes: exhaustive search over all split points", "the largest n / b is the least possible",
        lambda shared: shared.once(_least, 2), "2 nodes, up to 8 layers, by seed_bandwidth_aware and split_minmax",
        TRIED,
        EVERY,
        note="Memory does not count: nodes with 1 and 1,000 bytes get {} and {} of 30 layers where the first has twice "
        "the bandwidth.",
        known=lambda shared: _by_bandwidth(30, [1, 1000], [200, 100]),
    ),
    Claim(
        BANDWIDTH, "For 3+ nodes: heuristic weighted by bandwidth * ram", "on 3 nodes memory counts",
        lambda shared: (_by_bandwidth(30, [1, 1000, 1], [100] * 3), _by_bandwidth(30, [1] * 3, [100] * 3)),
        "30 layers on 3 nodes of equal bandwidth, one with 1,000 times the memory, and on equal nodes; "
        "by seed_bandwidth_aware", FAILS, DIFFERENT,
        note="Three nodes are searched exhaustively, by bandwidth alone. With four nodes it is as the comment says.",
    ),
    Claim(TESTS, "assign_layers_proportional(32, &[16_000, 16_000]) … 0..16, 16..32", "0..16, 16..32",
          _proportional(32, [16_000, 16_000]), "seed_proportional", "exact", NUMBERS),
    Claim(TESTS, "assign_layers_proportional(32, &[48_000, 16_000]) … 0..24, 24..32", "0..24, 24..32",
          _proportional(32, [48_000, 16_000]), "seed_proportional", "exact", NUMBERS),
    Claim(TESTS, "assign_layers_proportional(30, &[10_000, 10_000, 10_000]) … 0..10, 10..20, 20..30",
          "0..10, 10..20, 20..30", _proportional(30, [10_000] * 3), "seed_proportional", "exact", NUMBERS),
    Claim(
        TESTS, "Node 0 has 2x bandwidth → should get ~2x layers", "~2x",
        _twice,
        "layers of node 0 over those of node 1, by seed_bandwidth_aware", "exact", NUMBERS,
    ),
    Claim(
        TESTS, "All ranges should be contiguous", "from 0 to 30 without a gap",
        _contiguous, "30 layers on three equal nodes, by seed_bandwidth_aware", HOLDS, EVERY,
    ),
    Claim(
        TESTS, "assign_layers_proportional(4, &[100, 100, 100, 100]) … each node must get at least one layer",
        "four nodes with a layer",
        lambda shared: (sum(n > 0 for n in _sizes(published.assign_layers_proportional(4, [100] * 4))), 4),
        "nodes with a layer by seed_proportional, and nodes", HOLDS, EQUAL,
    ),
)  # fmt: skip
