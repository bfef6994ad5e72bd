"""The joint-ILP write-up from "Problem Evolution" to "The Joint Optimization Challenge"."""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pipelab as pl
from pipelab.checked import given
from pipelab.ledger.claims import Claim
from pipelab.ledger.comparisons import ABOVE, EQUAL, NUMBERS, TEXT, UNLIKE

if TYPE_CHECKING:
    from pipelab.evaluate import Evaluation
    from pipelab.ledger.desk import Desk
    from pipelab.placement import Placement

__all__ = ["AS_RUN", "CLAIMS"]

EVOLUTION, ORIGINAL = "Problem Evolution", "What the Original Solver Solves"
LIMITS, EXAMPLE = "Limitations of Original Solver", "Limitations …, Concrete Example"
CHALLENGE, COUPLED = "Problem Complexity Analysis", "First Insight"
AS_RUN = "the segments of its author's code: starts on a grid of 4, smallest sizes, one layer on every GPU, fit or not"
ALL_LAYERS = "that the GPU holds all 14 layers, whatever its memory; a stage as drawn holds fewer"


def _drawn(stages: tuple[tuple[int, int], ...]) -> "pl.Placement":
    """The scenario's layers 1-8, 9-12 and 13-14 on so many H100, A10 and T4, ids in pool order."""
    return pl.Placement.of([(layers, tuple(range(10 * i, 10 * i + n))) for i, (layers, n) in enumerate(stages)])


ALONE = _drawn(((8, 1), (4, 1), (2, 1)))
HYBRID = _drawn(((8, 1), (4, 2), (2, 4)))


def _judged(desk: "Desk", placement: "Placement") -> "Evaluation":
    """Links in tokens/s, where they are no bottleneck: what the demo's are was never published."""
    return desk.once(pl.evaluate, desk.case("demo", 4, link_units="tokens"), placement)


def _bottleneck(desk: "Desk") -> str:
    """The GPU type of the slowest stage when each has one GPU."""
    judged = _judged(desk, ALONE)
    slowest = int(judged.bottlenecks[0].split()[1]) - 1
    return judged.stages[slowest].gpu_types[0]


def _doubled(desk: "Desk") -> float:
    """How much larger the original MILP of medium gets with twice as many GPUs."""
    medium = desk.case("medium")
    counts = {kind.type: 2 * int(n) for kind, n in zip(medium.cluster.kinds, medium.cluster.kind_count, strict=True)}
    memory = {kind.type: kind.memory_gb for kind in medium.cluster.kinds}
    twice = replace(medium, cluster=pl.Cluster.from_counts(counts, memory, 600))
    return pl.single_gpu_size(twice)["variables"] / desk.original("all")["variables"]


def _fastest_a10(desk: "Desk") -> float:
    """The most that an A10 yields with a batch of 100: all 14 layers and the shortest sequence there is."""
    demo = desk.case("demo")
    short = replace(demo.workload, sequence_length=1)
    return float(demo.costs.gpu_throughput("A10", short, demo.workload.batch_size, demo.model.layers))


def _with_v100(desk: "Desk", v100: int) -> float:
    """small with links an eighth as fast: six layers on A100 number 0, six on this V100."""
    small = desk.case("small")
    slow = replace(small, cluster=small.cluster.scaled_bandwidth(1 / 8))
    return pl.evaluate(slow, pl.Placement.of([(6, (0,)), (6, (v100,))])).throughput


def _one_by_one(desk: "Desk") -> tuple[float, float]:
    """Segmentation first (evenly, over all GPUs), GPUs second; and both at once, on small."""
    small = desk.case("small")
    return desk.once(pl.solve, small, "even").throughput, given(desk.best("small").throughput)


def _fits(desk: "Desk", gpus: tuple[int, ...]) -> str:
    """Whether these GPUs of tiny can share all layers when each weighs 10 GB."""
    tiny = desk.tiny
    heavy = replace(tiny, model=replace(cast(pl.Model, tiny.model), layer_weight_gb=10))
    try:
        pl.evaluate(heavy, pl.Placement.of([(heavy.model.layers, gpus)]))
    except pl.InvalidPlacement:
        return "refused"
    return "fits"


def _types(desk: "Desk", placement: "Placement") -> str:
    """The GPUs of a placement in words."""
    stages = desk.once(pl.evaluate, desk.case("demo", 4), placement).stages
    return ", ".join(f"{len(s.stage.gpus)}×{s.gpu_types[0]}" for s in stages)


CLAIMS = (
    Claim(
        EVOLUTION, "the original solver only considers single-GPU segments, missing opportunities", "more is possible",
        lambda desk: (desk.best("tiny", 2).throughput, desk.best("tiny").throughput),
        "optimum of tiny with two GPUs per stage, and with one", "exact", ABOVE,
    ),
    Claim(
        EVOLUTION, "H100: layers 1-8, A10: layers 9-12 ← BOTTLENECK, T4: layers 13-14 ← underutilized", "A10",
        _bottleneck, "slowest stage of that placement of the demo, by evaluate", "wrong", TEXT,
        note="It is the T4, also by the text's own 400 and 200 tokens/s.",
    ),
    Claim(
        EVOLUTION, "1×H100 (100 RPS) - 2×A10 (50 RPS each) - 4×T4 (25 RPS each)", "three equal rates",
        lambda desk: tuple(stage.throughput for stage in _judged(desk, HYBRID).stages),
        "tokens/s of those stages, by evaluate", "cannot be decided", TEXT,
        undecided="Nothing says how many tokens a request has.", note="In tokens/s the three are far from equal.",
    ),
    Claim(ORIGINAL, "80 layers", "80", lambda desk: desk.case("medium").model.layers, "load_case('medium')", "exact"),
    Claim(ORIGINAL, "65 GPUs", "65", lambda desk: len(desk.case("medium").cluster), "load_case('medium')", "exact"),
    Claim(
        ORIGINAL, "mixed H100, A10, V100, etc.", "some H100",
        lambda desk: (sum(gpu.type == "H100" for gpu in desk.case("medium").cluster.gpus), 0),
        "H100 among medium's GPUs, and none", "wrong", ABOVE,
    ),
    Claim(
        ORIGINAL, "Generated 5,740 segments", "5,740", lambda desk: desk.original()["segments"],
        "single_gpu_size, segments as run", "only under an unstated assumption", NUMBERS, AS_RUN,
        lambda desk: desk.original("all")["segments"],
        note="Of all that fit there are 25,740 by the text's own constraints.",
    ),
    Claim(
        ORIGINAL, "5,740 segments → 317,950 binary variables", "317,950",
        lambda desk: desk.original()["segments"] + desk.original()["connections"],
        "segments and connections of single_gpu_size", "only under an unstated assumption", NUMBERS,
        "segments as run, and that the binaries which tell whether a GPU is used do not count",
        lambda desk: desk.original()["segments"] + desk.original()["connections"] + len(desk.case("medium").cluster),
    ),
    Claim(
        ORIGINAL, "Network connections: 312,210 pairs", "312,210", lambda desk: desk.original()["connections"],
        "single_gpu_size, segments as run", "only under an unstated assumption", NUMBERS, AS_RUN,
        lambda desk: desk.original("all")["connections"],
    ),
    Claim(
        ORIGINAL, "Total problem size: ~600K variables", "~600K", lambda desk: desk.original()["variables"],
        "single_gpu_size, segments as run", "only under an unstated assumption", NUMBERS, AS_RUN,
        lambda desk: desk.original("all")["variables"],
    ),
    Claim(
        ORIGINAL, "1.7M constraints", "1.7M", lambda desk: desk.original()["rows"],
        "single_gpu_size, segments as run, every family of rows", "wrong",
        note="No set of its constraints was found that has so many rows.",
    ),
    Claim(
        LIMITS, "Problem size grows as O(layers × GPUs × segment_sizes)", "2",
        lambda desk: _doubled(desk), "variables of medium with twice the GPUs, over those with its own", "wrong",
        note="Pairs of segments are most of it, so that twice the GPUs make about four times the problem.",
    ),
    Claim(
        EXAMPLE, "14 layers, 30 GPUs (10×H100, 10×A10, 10×T4)", "14 layers, 30 GPUs",
        lambda desk: (desk.case("demo").model.layers, len(desk.case("demo").cluster)), "load_case('demo')", "exact",
        note="Its model, memory and links were never published; pipelab's are recovered from the count of 345,465.",
    ),
    Claim(
        EXAMPLE, "Original solver limitation: H100, A10 and T4 each hold a segment", "3 segments",
        lambda desk: len(given(desk.best("demo").placement)), "stages of the demo's optimum with one GPU per stage",
        "wrong", note="One H100 alone holds all layers, at its full rate; no A10 or T4 need be used.",
    ),
    Claim(
        EXAMPLE, "H100 processes 100 samples → 810 tokens/sec", "810", lambda desk: desk.rate("demo", "H100", 14),
        "rate of a stage of 14 layers", "only under an unstated assumption", NUMBERS, ALL_LAYERS,
        lambda desk: desk.rate("demo", "H100", 8),
    ),
    Claim(
        EXAMPLE, "A10 processes 100 samples → 400 tokens/sec", "400", _fastest_a10,
        "rate with all 14 layers and one token per sequence, the most the formula gives", "wrong",
        note="A V100's row of the coefficients would give 404.616 with 14 layers.",
    ),
    Claim(
        EXAMPLE, "T4 processes 100 samples → 200 tokens/sec", "200", lambda desk: desk.rate("demo", "T4", 14),
        "rate of a stage of 14 layers", "only under an unstated assumption", NUMBERS, ALL_LAYERS,
        lambda desk: desk.rate("demo", "T4", 2), note="A T4 holds two of them.",
    ),
    Claim(
        EXAMPLE, "A10 … 400 tokens/sec ← BOTTLENECK, T4 … 200 tokens/sec", "A10", _bottleneck,
        "slowest stage when each has one GPU", "wrong", TEXT, note="200 is less than 400.",
    ),
    Claim(
        EXAMPLE, "2×A10 each process 50 samples → 2×400 = 800 tokens/sec total", "800",
        lambda desk: desk.rate("demo", "A10", 14, 2), "rate of that stage with 14 layers", "wrong",
        note="Half the batch, and with it a lower rate: the text multiplies the rate of the whole batch.",
    ),
    Claim(
        EXAMPLE, "4×T4 each process 25 samples → 4×200 = 800 tokens/sec total", "800",
        lambda desk: desk.rate("demo", "T4", 14, 4), "rate of that stage with 14 layers", "wrong",
    ),
    Claim(
        EXAMPLE, "Balanced pipeline → 800+ tokens/sec", "800+",
        lambda desk: _judged(desk, HYBRID).throughput, "that placement, by evaluate", "wrong",
        note="Less than one H100 alone, which holds all layers.",
    ),
    Claim(
        EXAMPLE, "Optimal would be: 1×H100, 2×A10, 4×T4", "1×H100, 2×A10, 4×T4",
        lambda desk: _types(desk, given(desk.best("demo", 4).placement)), "the demo's optimum with four GPUs per stage",
        "wrong",
        TEXT,
    ),
    Claim(
        CHALLENGE, "requires solving: Load Distribution, how is the batch split across assigned GPUs?", "solved",
        lambda desk: (desk.best("tiny", 4).throughput, desk.best("tiny", 4, batch_split="balanced").throughput),
        "optimum of tiny with four GPUs per stage, split evenly as formulated, and split by speed", "wrong", EQUAL,
        note="The formulation fixes B/k; it decides nothing about the split.",
    ),
    Claim(
        CHALLENGE, "Combinatorial Explosion: O(segments × GPU_combinations)", "all of it",
        lambda desk: (desk.size("demo", 3)["connections"], desk.size("demo", 3)["allocations"]),
        "connections and allocations of the demo", "wrong", EQUAL, note="That is the allocations; their pairs explode.",
    ),
    Claim(
        CHALLENGE, "Segment throughput = min(GPU_throughputs) in stage", "the least rate",
        lambda desk: (
            desk.rate("tiny", "A100", 4, 2),
            desk.rate("tiny", "A100", 4, 2) / 2 / desk.case("tiny").costs.efficiency,
        ),
        "rate of a stage of two A100, and the lesser of theirs", "wrong", EQUAL,
        note="Its own formula further down multiplies by the number of GPUs and 0.85.",
    ),
    Claim(
        CHALLENGE, "Communication costs depend on specific GPU assignments", "they differ",
        lambda desk: (_with_v100(desk, 4), _with_v100(desk, 6)),
        "small, links ÷ 8: A100 number 0 and V100 number 4, and the same with number 6", "exact", UNLIKE,
    ),
    Claim(
        COUPLED, "Memory constraint applies to each gi individually", "A100 with V100 refused",
        lambda desk: (_fits(desk, (0, 1)), _fits(desk, (0, 2))),
        "tiny with layers of 10 GB: all on two A100, and on an A100 and a V100", "exact", UNLIKE,
    ),
    Claim(
        COUPLED, "segment and allocation decisions must be made simultaneously, not sequentially", "less otherwise",
        lambda desk: _one_by_one(desk)[::-1], "optimum of small, and an even split placed afterwards", "exact", ABOVE,
    ),
)  # fmt: skip
