"""The joint-ILP write-up's "Correct Joint ILP Formulation", from the idea to its size."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pipelab as pl
from pipelab import course
from pipelab.course.ledger.claims import ASSUMED, FAILS, HOLDS, MACHINE, TRIED, Claim, reading
from pipelab.course.ledger.comparisons import (
    ABOVE,
    AT_LEAST,
    DIFFERENT,
    EQUAL,
    EVERY,
    NUMBERS,
    TEXT,
    TIME,
)
from pipelab.course.ledger.trials import (
    links_of_neighbours,
    rows_cover_layers,
    rows_separate_gpus,
    sizes_agree,
    slowest_type_counts,
)  # fmt: skip
from pipelab.engine.methods.joint import gigabytes
from pipelab.fields import given

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import SharedResults
    from pipelab.course.n05 import LeftOut
    from pipelab.problem import Problem

IDEA, MATHS = "Key Insight: Pre-Enumerate Valid Allocations", "Mathematical Formulation (Correct)"
RATES, SIZE = "Throughput Calculation (Exact)", "Problem Size Analysis"
RECOVERED = (
    "the demo's model and memory as recovered from this very count (2,048 tokens, width 4,096, layers of 2 GB): the "
    "text gives neither, and without memory limits there are 475,125"
)


def _last_layer(shared: "SharedResults") -> str:
    """What the evaluator says to Segment(1, 8) and Segment(9, 14), start and size, on the example's GPUs."""
    stages = [(8, (0,)), (14, (10, 11))]
    try:
        return f"{pl.evaluate(shared.case('demo', 3), pl.Placement.of(stages)).throughput}"
    except pl.InvalidPlacement as error:
        return f"{error}"


def _types(shared: "SharedResults", gpus: Any) -> str:
    return ", ".join(dict.fromkeys(shared.case("demo").cluster.gpus[g].type for g in gpus))


def _one_layer(shared: "SharedResults") -> tuple[int, int]:
    """Layers + GPUs + connections of the demo with a single layer, and its rows there."""
    demo = shared.case("demo", 3)
    flat = replace(demo, model=replace(cast(pl.Model, demo.model), layers=1))
    counts, size = course.count_candidates(flat), course.joint_size(flat)
    return counts["layers"] + counts["gpus"] + counts["connections"], size["rows"]


def _without_connectivity(shared: "SharedResults") -> tuple[float, float]:
    """The LP bound of tiny, as a linear program, and SCIP's proven optimum below it."""
    tiny = shared.tiny
    return shared.once(course.joint_lp_bound, tiny, "written", "as_written"), given(
        shared.joint(tiny).throughput
    )


def with_ms(shared: "SharedResults", big_m: str) -> float:
    """What the joint ILP proves of tiny with links ÷ 8: with Ms that are large enough, or with the author's."""
    return round(shared.joint(shared.slow_tiny(), big_m=big_m).details["solver_objective"], 6)


def limitless(shared: "SharedResults", per_stage: int) -> int:
    """GPU sets of up to so many of the demo's GPUs, memory aside."""
    demo = shared.case("demo", per_stage)
    roomy = replace(
        demo, model=replace(cast(pl.Model, demo.model), layers=1, layer_weight_gb=0.001)
    )
    return shared.once(course.count_candidates, roomy)["allocations"]


def efficiency(shared: "SharedResults", efficiency: float) -> float:
    """tiny's optimum with another factor in place of 0.85."""
    tiny = shared.tiny
    return shared.once(
        pl.solve, replace(tiny, costs=replace(tiny.costs, efficiency=efficiency)), "aggregated"
    ).throughput


def three_heterogeneous(shared: "SharedResults") -> "Problem":
    """Three heterogeneous GPUs that are all needed, on slow links."""
    tiny = shared.tiny
    links = {("A100", "V100"): 100, ("A100", "T4"): 12, ("V100", "T4"): 12}
    three = pl.Cluster.from_counts(
        {"A100": 1, "V100": 1, "T4": 1}, {"A100": 60, "V100": 32, "T4": 32}, links
    )
    return replace(
        tiny,
        cluster=three,
        model=replace(cast(pl.Model, tiny.model), layer_weight_gb=25),
        name="three heterogeneous GPUs",
    )


def left_out(shared: "SharedResults", *families: str) -> "LeftOut":
    """Those, by the joint ILP in cvxpy without some families of rows."""
    return course.leave_out(three_heterogeneous(shared), *families)


CLAIMS = (
    Claim(
        IDEA, "(Segment(9,14), frozenset({10,11})), # A10 gpus 10,11 together … start_layer: int segment_size: int",
        "layers 9-14", _last_layer, "Segment(1,8) and Segment(9,14) on its GPUs, by evaluate", FAILS, TEXT,
        note="The second field is a size: Segment(9,14) ends at layer 22. Segment(9,6) is meant.",
    ),
    Claim(
        IDEA, "# H100 gpus 0,1,2 together … # A10 gpus 10,11 together", "H100, A10",
        lambda shared: f"{_types(shared, (0, 1, 2))}, {_types(shared, (10, 11))}", "types of these ids in the demo",
        HOLDS,
        TEXT,
    ),
    Claim(
        IDEA, "This eliminates the nonlinearity because each allocation has a pre-computed throughput value",
        "one rate for each allocation",
        lambda shared: (len(course.enumerate_candidates(shared.tiny).throughput),
            shared.size("tiny", 2)["allocations"]),
        "rates listed for tiny, and its allocations", HOLDS, EQUAL,
    ),
    Claim(
        MATHS, "1. Layer Coverage: … Σ z[a] = 1, where a.segment covers layer ℓ",
        "two allocations without a common GPU are a placement exactly if the row holds", rows_cover_layers,
        "pairs of tiny's allocations, by the row and by evaluate", TRIED, EVERY,
    ),
    Claim(
        MATHS, "2. GPU Exclusivity: … Σ z[a] ≤ 1, where g ∈ a.gpu_set",
        "two allocations that cover every layer once are a placement exactly if the row holds", rows_separate_gpus,
        "pairs of tiny's allocations, by the row and by evaluate", TRIED, EVERY,
        note="Without it, on three GPUs of different types: {}.",
        known=lambda shared: (shared.once(left_out, shared, "gpu_exclusivity").verdict,),
    ),
    Claim(
        MATHS, "Sequential connectivity: … Σ e[a1, a2] ≥ z[a1], where a2 starts at layer ℓ+1 … "
        "Σ e[a1, a2] ≥ z[a2], where a1 ends at layer ℓ", "without it links are forgotten",
        lambda shared: (shared.once(left_out, shared).verdict,
            shared.once(left_out, shared, "successor", "predecessor").verdict),
        "three GPUs of different types with slow links: the evaluator on the program's answer, and on that of the "
        "program without these rows", HOLDS, DIFFERENT,
    ),
    Claim(
        MATHS, "4. Network Connection Logic: … e[a1, a2] ≤ z[a1] e[a1, a2] ≤ z[a2]",
        "they leave the links of a placement, and no other", links_of_neighbours,
        "placements of tiny with two stages: connections with both ends chosen, and the one link", TRIED, EVERY,
    ),
    Claim(
        MATHS, "Throughput Definitions (LINEAR!): … τ_alloc[a] = throughput_value[a] × z[a]",
        "its linear relaxation has a value, above the optimum",
        _without_connectivity, "LP bound and optimum of tiny", HOLDS, ABOVE,
        note="Linear, and redundant: τ and ρ can be put in where they are used, with the same LP bound.",
    ),
    reading(
        MATHS, "t ≤ τ_alloc[a] + M_alloc × (1 - z[a]) … t ≤ ρ[a1, a2] + M_network × (1 - e[a1, a2])",
        "The text gives its Ms no value. With M_network no smaller than the fastest stage's rate no placement is cut "
        "off: tiny with links ÷ 8 gives {}. The author's code takes 1.1 times the fastest link and gets {}; the "
        "truth is {}.",
        lambda shared: (
            with_ms(shared, "valid"), with_ms(shared, "as_written"), round(shared.tried(shared.slow_tiny()), 6),
        ),
    ),
    Claim(
        RATES, "Throughput Calculation (Exact) … scaled by communication efficiency", "no factor of its own",
        lambda shared: (efficiency(shared, 1.0), shared.best("tiny", 2).throughput),
        "optimum of tiny without the factor, and with the default of the author's code", FAILS, EQUAL,
        note="No measurement stands behind the factor, nor behind any coefficient of a rate.",
    ),
    Claim(
        RATES, "Segment limited by slowest GPU", "two GPUs are as fast as two of the slower type", slowest_type_counts,
        "stages of two GPUs of any of 8 types, by stage", TRIED, EVERY,
    ),
    Claim(
        RATES, "min_bandwidth / tensor_size_gb # transfers per second", "comparable with tokens/s",
        lambda shared: (shared.best("medium", 3).throughput, shared.best("medium", 3, link_units="tokens").throughput),
        "optimum of medium with three GPUs per stage, links as written and in tokens/s", FAILS, EQUAL,
    ),
    reading(
        RATES, "tensor_size_gb = (batch_size * seq_len * d_model * bytes_per_element) / (1024^3)",
        "Bandwidths have no unit in the text. tiny's fastest link makes {} transfers/s if GB are 1024^3 bytes, {} "
        "if they are 10^9, and an eighth of that if they are gigabits.",
        lambda shared: (
            shared.case("tiny").link_throughput(400.0), 400.0 / shared.case("tiny").tensor_gb(),
        ),
    ),
    Claim(
        SIZE, "Variables: O(|A| + |E|)", "2(A + E) + 1", lambda shared: shared.once(sizes_agree, shared)[0],
        "all published cases with one, two and three GPUs per stage, by course.joint_size", TRIED, EVERY,
        note="In the demo {} of them belong to connections.",
        known=lambda shared: (2 * shared.size("demo", 3)["connections"],),
    ),
    Claim(
        SIZE, "|A| = O(segments × gpu_combinations)", "no more than their product",
        lambda shared: shared.once(sizes_agree, shared)[1],
        "all published cases with one, two and three GPUs per stage, by course.joint_size", TRIED, EVERY,
        note="In the demo {} of {}: memory leaves out the others.",
        known=lambda shared: (shared.size("demo", 3)["allocations"],
            shared.size("demo", 3)["segments"] * limitless(shared, 3)),
    ),
    Claim(
        SIZE, "Constraints: O(layers + GPUs + |E|)", "no more than that where there are no connections", _one_layer,
        "layers + GPUs + connections of the demo with one layer, and its rows", FAILS, AT_LEAST,
        note="Every allocation has two rows of its own, also where nothing can follow.",
    ),
    reading(
        SIZE, "Critical Factor: Number of valid allocations |A|",
        "In the demo there are {} allocations, and {} connections, each with two variables and four rows.",
        lambda shared: (shared.size("demo", 3)["allocations"], shared.size("demo", 3)["connections"]),
    ),
    Claim(
        SIZE, "Tiny (4 layers, 4 GPUs, max_gpus=2): … Tiny Configuration (4 layers, 16 batch_size, 4 GPUs)",
        "4 layers, 16 batch_size, 4 GPUs",
        lambda shared: (
            shared.case("tiny").model.layers, shared.case("tiny").workload.batch_size, len(shared.case("tiny").cluster),
        ),
        "load_case('tiny'), the author's configuration of that size", "exact",
    ),
    Claim(SIZE, "Segments: 10", "10", lambda shared: shared.size("tiny", 2)["segments"], "joint_size of tiny", "exact"),
    Claim(SIZE, "Allocations: 100", "100", lambda shared: shared.size("tiny", 2)["allocations"], "joint_size of tiny",
          "exact"),
    Claim(SIZE, "Variables: ~1,041 … ~1K (small)", "~1,041 and ~1K",
          lambda shared: (shared.size("tiny", 2)["variables"],) * 2, "joint_size of tiny", "rounded"),
    Claim(
        SIZE, "Solve time: 0.34 seconds", "0.34", lambda shared: shared.joint(shared.tiny).seconds,
        "solve(tiny, 'joint'), seconds here and now", MACHINE, TIME,
    ),
    Claim(SIZE, "Segments: 105", "105", lambda shared: shared.size("demo", 3)["segments"], "joint_size of the demo",
          "exact"),
    Claim(
        SIZE, "Allocations: 345,465 ← EXPLOSION!", "345,465", lambda shared: shared.size("demo", 3)["allocations"],
        "joint_size of the demo", ASSUMED, NUMBERS, RECOVERED,
        lambda shared: shared.size("demo", 3)["segments"] * limitless(shared, 3),
    ),
    Claim(
        SIZE, "Variables: ~690K … ~700K (large)", "~690K and ~700K",
        lambda shared: (shared.size("demo", 3)["variables"],) * 2, "joint_size of the demo", "wrong",
        note="It is twice the allocations ({}): e and ρ, one of each per connection, are forgotten.",
        known=lambda shared: (2 * shared.size("demo", 3)["allocations"],),
    ),
    Claim(
        SIZE, "Solve time: Timeout", "a time limit ended it",
        lambda shared: f"{round(gigabytes(shared.size('demo', 3))):,} GB to build and solve it",
        "memory that the demo's program would need", MACHINE, TIME,
        note="It would not come to solving: such a program cannot be built.",
    ),
    reading(
        SIZE, "Scalability Strategy: Limit max_gpus_per_segment and use intelligent pruning",
        "With two GPUs per stage the demo keeps {} variables, with one {}.",
        lambda shared: tuple(shared.size("demo", most)["variables"] for most in (2, 1)),
    ),
)  # fmt: skip
