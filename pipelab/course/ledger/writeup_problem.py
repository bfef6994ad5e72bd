"""The joint-ILP write-up from "Problem Evolution" to "The Joint Optimization Challenge"."""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pipelab as pl
from pipelab import course
from pipelab.course.ledger.claims import ASSUMED, FAILS, HOLDS, TRIED, Claim, reading
from pipelab.course.ledger.comparisons import (
    ABOVE,
    AT_LEAST,
    DIFFERENT,
    EQUAL,
    EVERY,
    NUMBERS,
    TEXT,
)
from pipelab.course.ledger.trials import each_gpu_by_itself
from pipelab.fields import given

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import SharedResults
    from pipelab.evaluation import Evaluation
    from pipelab.placement import Placement
    from pipelab.solving import Result

EVOLUTION, ORIGINAL = "Extended Problem Motivation", "What the Original Solver Solves"
LIMITS, CHALLENGE = "Limitations of Original Solver", "Problem Complexity Analysis"
COUPLED = "First Insight: The Problem Is Jointly Solvable"
AS_RUN = "the segments of its author's code: starts on a grid of 4, smallest sizes, one layer on every GPU, fit or not"
ALL_LAYERS = "that the GPU holds all 14 layers, whatever its memory; a stage as drawn holds fewer"


def _drawn(stages: tuple[tuple[int, int], ...]) -> "pl.Placement":
    """The scenario's layers 1-8, 9-12 and 13-14 on so many H100, A10 and T4, ids in pool order."""
    return pl.Placement.of(
        [(layers, tuple(range(10 * i, 10 * i + n))) for i, (layers, n) in enumerate(stages)]
    )


ALONE = _drawn(((8, 1), (4, 1), (2, 1)))
HYBRID = _drawn(((8, 1), (4, 2), (2, 4)))


def _judged(shared: "SharedResults", placement: "Placement") -> "Evaluation":
    """Links in tokens/s, where they are no bottleneck: what the demo's are was never published."""
    return shared.once(pl.evaluate, shared.case("demo", 4, link_units="tokens"), placement)


def _bottleneck(shared: "SharedResults") -> str:
    """The GPU type of the slowest stage when each has one GPU."""
    judged = _judged(shared, ALONE)
    slowest = int(judged.bottlenecks[0].split()[1]) - 1
    return judged.stages[slowest].gpu_types[0]


def _three_h100() -> "pl.Placement":
    """The scenario's layers, each part on an H100."""
    return pl.Placement.of([(8, (0,)), (4, (1,)), (2, (2,))])


def _slowest_type(shared: "SharedResults", name: str, per_stage: int) -> str:
    """The GPUs of the slowest stage of a case's optimum."""
    best = given(shared.best(name, per_stage).evaluation)
    slowest = min(best.stages, key=lambda stage: stage.throughput)
    return f"{len(slowest.stage.gpus)}×{slowest.gpu_types[0]}"


def _with_layers_of(shared: "SharedResults", gb: float) -> "Result":
    """The demo's optimum with one GPU per stage and layers of this weight."""
    demo = shared.case("demo")
    return shared.once(
        pl.solve,
        replace(demo, model=replace(cast(pl.Model, demo.model), layer_weight_gb=gb)),
        "aggregated",
    )


def _doubled(shared: "SharedResults") -> tuple[int, int]:
    """Twice the variables of medium's original MILP, and those with twice as many GPUs."""
    medium = shared.case("medium")
    counts = {
        kind.type: 2 * int(n)
        for kind, n in zip(medium.cluster.kinds, medium.cluster.kind_count, strict=True)
    }
    memory = {kind.type: kind.memory_gb for kind in medium.cluster.kinds}
    twice = replace(medium, cluster=pl.Cluster.from_counts(counts, memory, 600))
    return 2 * shared.original("all")["variables"], course.single_gpu_size(twice)["variables"]


def _as_a_v100(shared: "SharedResults") -> float:
    """What the text's A10 would yield were it a V100, with all 14 layers."""
    demo = shared.case("demo")
    return float(
        demo.costs.gpu_throughput(
            "V100", demo.workload, demo.workload.batch_size, demo.model.layers
        )
    )


def _fastest_a10(shared: "SharedResults") -> float:
    """The most that an A10 yields with a batch of 100: all 14 layers and the shortest sequence there is."""
    demo = shared.case("demo")
    short = replace(demo.workload, sequence_length=1)
    return float(
        demo.costs.gpu_throughput("A10", short, demo.workload.batch_size, demo.model.layers)
    )


def _with_v100(shared: "SharedResults", v100: int) -> float:
    """small with links an eighth as fast: six layers on A100 number 0, six on this V100."""
    small = shared.case("small")
    slow = replace(small, cluster=small.cluster.scaled_bandwidth(1 / 8))
    return pl.evaluate(slow, pl.Placement.of([(6, (0,)), (6, (v100,))])).throughput


def _one_by_one(shared: "SharedResults") -> tuple[float, float]:
    """Segmentation first (evenly, over all GPUs), GPUs second; and both at once, on small."""
    small = shared.case("small")
    return shared.once(pl.solve, small, "even").throughput, given(shared.best("small").throughput)


def _types(shared: "SharedResults", placement: "Placement") -> str:
    """The GPUs of a placement in words."""
    stages = shared.once(pl.evaluate, shared.case("demo", 4), placement).stages
    return ", ".join(f"{len(s.stage.gpus)}×{s.gpu_types[0]}" for s in stages)


CLAIMS = (
    Claim(
        EVOLUTION, "the original solver only considers single-GPU segments, missing opportunities",
        "more is possible with several",
        lambda shared: (shared.best("tiny", 2).throughput, shared.best("tiny").throughput),
        "optimum of tiny with two GPUs per stage, and with one", HOLDS, ABOVE,
    ),
    reading(
        EVOLUTION, "1×H100: layers 1-8 (100 RPS total) - 2×A10: layers 9-12 (50 RPS each = 100 RPS total) - "
        "4×T4: layers 13-14(25 RPS each = 100 RPS total)",
        "An illustration: nothing says how many tokens a request has. By the demo's coefficients these stages "
        "yield {}, {} and {} tokens/s, far from equal.",
        lambda shared: tuple(stage.throughput for stage in _judged(shared, HYBRID).stages),
    ),
    Claim(ORIGINAL, "80 layers, 65 GPUs", "80 layers, 65 GPUs",
          lambda shared: (shared.case("medium").model.layers, len(shared.case("medium").cluster)),
          "load_case('medium')",
          "exact"),
    Claim(
        ORIGINAL, "mixed H100, A10, V100, etc.", "some H100",
        lambda shared: (sum(gpu.type == "H100" for gpu in shared.case("medium").cluster.gpus), 0),
        "H100 among the GPUs of medium, the author's configuration of that size, and none", FAILS, ABOVE,
    ),
    Claim(
        ORIGINAL, "Generated 5,740 segments", "5,740", lambda shared: shared.original()["segments"],
        "single_gpu_size, segments as run", ASSUMED, NUMBERS, AS_RUN, lambda shared: shared.original("all")["segments"],
        note="Of all that fit there are {} by the text's own constraints.",
        known=lambda shared: (shared.original("all")["segments"],),
    ),
    Claim(
        ORIGINAL, "5,740 segments → 317,950 binary variables … ~300K (large problems)", "317,950 and ~300K",
        lambda shared: (shared.original()["segments"] + shared.original()["connections"],) * 2,
        "segments and connections of course.single_gpu_size", ASSUMED, NUMBERS,
        "segments as run, and that the binaries which tell whether a GPU is used do not count",
        lambda shared: (
            shared.original()["segments"] + shared.original()["connections"] + len(shared.case("medium").cluster),
        ) * 2,
    ),
    Claim(
        ORIGINAL, "Network connections: 312,210 pairs", "312,210", lambda shared: shared.original()["connections"],
        "single_gpu_size, segments as run", ASSUMED, NUMBERS, AS_RUN,
        lambda shared: shared.original("all")["connections"],
    ),
    Claim(
        ORIGINAL, "Total problem size: ~600K variables", "~600K", lambda shared: shared.original()["variables"],
        "single_gpu_size, segments as run", ASSUMED, NUMBERS, AS_RUN,
        lambda shared: shared.original("all")["variables"],
    ),
    Claim(
        ORIGINAL, "1.7M constraints", "1.7M", lambda shared: shared.original()["rows"],
        "single_gpu_size, segments as run, every family of rows", "wrong",
        note="No set of its constraints was found that has so many rows.",
    ),
    Claim(
        LIMITS, "Problem size grows as O(layers × GPUs × segment_sizes)", "twice the GPUs, at most twice the variables",
        _doubled, "twice the variables of medium's original program, and those with twice the GPUs", FAILS, AT_LEAST,
        note="Pairs of segments are most of it, so that twice the GPUs make about four times the problem.",
    ),
    Claim(
        LIMITS, "Load Imbalance: Weaker GPUs become bottlenecks even when multiple units available",
        "with one GPU per stage another type is the bottleneck than with two",
        lambda shared: (_slowest_type(shared, "medium", 1), _slowest_type(shared, "medium", 2)),
        "GPUs of the slowest stage in medium's optimum with one and with two GPUs per stage", HOLDS, DIFFERENT,
        note="A40 in pairs are no bottleneck any more. Weaker types still are not used at all: the optimum leaves "
        "them out.",
    ),
    Claim(
        LIMITS, "14 layers, 30 GPUs (10×H100, 10×A10, 10×T4), batch_size=100", "14, 30, 10, 10, 10 and 100",
        lambda shared: (
            shared.case("demo").model.layers, len(shared.case("demo").cluster),
            *(int(n) for n in shared.case("demo").cluster.kind_count), shared.case("demo").workload.batch_size,
        ),
        "load_case('demo'), which is set up from this line", "exact",
        note="Its model, memory and links were never published; pipelab's are recovered from the count of allocations. "
        "The batch is the one with which 810 tokens/s come out.",
    ),
    reading(
        LIMITS, "Must assign each segment to single GPU - H100 processes 100 samples … A10 processes 100 samples … "
        "T4 processes 100 samples",
        "That a single-GPU pipeline has to use all three types depends on the layers' weight, which the text does not "
        "give: with the recovered 2 GB the optimum has {} stage, with 5 GB {}.",
        lambda shared: tuple(len(given(_with_layers_of(shared, gb).placement)) for gb in (2, 5)),
    ),
    Claim(
        LIMITS, "H100 processes 100 samples → 810 tokens/sec", "810", lambda shared: shared.rate("demo", "H100", 14),
        "rate of a stage of 14 layers", ASSUMED, NUMBERS, ALL_LAYERS, lambda shared: shared.rate("demo", "H100", 8),
    ),
    Claim(
        LIMITS, "A10 processes 100 samples → 400 tokens/sec", "400", _fastest_a10,
        "rate with all 14 layers and one token per sequence, the most the formula gives", "wrong",
        note="With a V100's coefficients it would be {}.", known=lambda shared: (_as_a_v100(shared),),
    ),
    Claim(
        LIMITS, "T4 processes 100 samples → 200 tokens/sec", "200", lambda shared: shared.rate("demo", "T4", 14),
        "rate of a stage of 14 layers", ASSUMED, NUMBERS, ALL_LAYERS, lambda shared: shared.rate("demo", "T4", 2),
        note="A T4 holds two of them.",
    ),
    Claim(
        LIMITS, "A10 processes 100 samples → 400 tokens/sec ← BOTTLENECK - T4 processes 100 samples → 200 tokens/sec",
        "A10", _bottleneck, "slowest stage when each has one GPU and holds the layers drawn above", FAILS, TEXT,
        note="The T4 is slower by the text's own numbers as well.",
    ),
    Claim(
        LIMITS, "2×A10 each process 50 samples → 2×400 = 800 tokens/sec total - "
        "4×T4 each process 25 samples → 4×200 = 800 tokens/sec total", "800 and 800",
        lambda shared: (shared.rate("demo", "A10", 14, 2), shared.rate("demo", "T4", 14, 4)),
        "rates of these stages with all 14 layers", "wrong",
        note="A GPU with a part of the batch is slower: the text multiplies the rate of the whole batch.",
    ),
    Claim(
        LIMITS, "Balanced pipeline → 800+ tokens/sec", "800+", lambda shared: _judged(shared, HYBRID).throughput,
        "that placement, by evaluate", "wrong", note="One H100 alone, which holds all layers, yields {}.",
        known=lambda shared: (shared.best("demo").throughput,),
    ),
    Claim(
        LIMITS, "Optimal would be: - 1×H100 … 2×A10 … 4×T4", "no placement is faster",
        lambda shared: (_judged(shared, HYBRID).throughput, _judged(shared, _three_h100()).throughput),
        "tokens/s of that placement, and of the same cuts on an H100 each, by evaluate", FAILS, AT_LEAST,
        note="The optimum with up to four GPUs per stage is {}.",
        known=lambda shared: (_types(shared, given(shared.best("demo", 4).placement)),),
    ),
    Claim(
        CHALLENGE, "The joint optimization requires solving: … Load Distribution: How is the batch split across "
        "assigned GPUs?", "no other split is faster",
        lambda shared: (shared.best("tiny", 4).throughput, shared.best("tiny", 4, batch_split="balanced").throughput),
        "optimum of tiny with four GPUs per stage, split evenly as formulated, and split by speed", FAILS, AT_LEAST,
        note="The formulation fixes an equal share per GPU; it decides nothing about the split.",
    ),
    reading(
        CHALLENGE, "Combinatorial Explosion: O(segments × GPU_combinations)",
        "That bounds the allocations. Their pairs, which the program has variables for as well, explode: the demo "
        "has {} allocations and {} connections.",
        lambda shared: (shared.size("demo", 3)["allocations"], shared.size("demo", 3)["connections"]),
    ),
    Claim(
        CHALLENGE, "Nonlinear Dependencies: Segment throughput = min(GPU_throughputs) in stage", "the least rate",
        lambda shared: (
            shared.rate("tiny", "A100", 4, 2),
            shared.rate("tiny", "A100", 4, 2) / 2 / shared.case("tiny").costs.efficiency,
        ),
        "rate of a stage of two A100, and the lesser of theirs", FAILS, EQUAL,
        note="Its own formula further down multiplies by the number of GPUs and by an efficiency.",
    ),
    Claim(
        CHALLENGE, "Communication costs depend on specific GPU assignments", "they differ",
        lambda shared: (_with_v100(shared, 4), _with_v100(shared, 6)),
        "small, links ÷ 8: A100 number 0 and V100 number 4, and the same with number 6", HOLDS, DIFFERENT,
    ),
    Claim(
        COUPLED, "Memory constraint applies to each gi individually", "a stage of two fits exactly if it fits on each",
        each_gpu_by_itself, "stages of two of tiny's GPUs, layers of 2 to 20 GB, by evaluate", TRIED, EVERY,
    ),
    Claim(
        COUPLED, "segment and allocation decisions must be made simultaneously, not sequentially", "less otherwise",
        lambda shared: _one_by_one(shared)[::-1], "optimum of small, and an even split placed afterwards", HOLDS, ABOVE,
    ),
)  # fmt: skip
