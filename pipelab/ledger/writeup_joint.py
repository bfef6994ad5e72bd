"""The joint-ILP write-up's "Correct Joint ILP Formulation", from the idea to its size."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pipelab as pl
from pipelab.checked import given
from pipelab.ledger.claims import Claim
from pipelab.ledger.comparisons import ABOVE, EQUAL, NUMBERS, TEXT, TIME, UNLIKE
from pipelab.methods.memory import gigabytes

if TYPE_CHECKING:
    from pipelab.formulations.ablation import LeftOut
    from pipelab.ledger.desk import Desk
    from pipelab.problem import Problem

__all__ = ["CLAIMS", "efficiency", "left_out", "limitless", "three_unlike"]

IDEA, MATHS = "Key Insight: Pre-Enumerate", "Mathematical Formulation (Correct)"
RATES, SIZE, SIZES = "Throughput Calculation (Exact)", "Problem Size Analysis", "Example Sizes"
RECOVERED = (
    "the demo's model and memory as recovered from this very count (2,048 tokens, width 4,096, layers of 2 GB): the "
    "text gives neither, and without memory limits there are 475,125"
)


def _last_layer(desk: "Desk") -> str:
    """What the judge says to Segment(1, 8) and Segment(9, 14), start and size, on the example's GPUs."""
    stages = [(8, (0,)), (14, (10, 11))]
    try:
        return f"{pl.evaluate(desk.case('demo', 3), pl.Placement.of(stages)).throughput}"
    except pl.InvalidPlacement as error:
        return f"{error}"


def _types(desk: "Desk", gpus: Any) -> str:
    return ", ".join(dict.fromkeys(desk.case("demo").cluster.gpus[g].type for g in gpus))


def _one_layer(desk: "Desk") -> tuple[int, int]:
    """Rows of the demo with a single layer, and layers + GPUs + connections there."""
    demo = desk.case("demo", 3)
    flat = replace(demo, model=replace(cast(pl.Model, demo.model), layers=1))
    counts, size = pl.count_candidates(flat), pl.joint_size(flat)
    return size["rows"], counts["layers"] + counts["gpus"] + counts["connections"]


def _not_counted(desk: "Desk") -> tuple[int, int]:
    """Variables of the demo, and 2(A + E) + 1."""
    size = desk.size("demo", 3)
    return size["variables"], 2 * (size["allocations"] + size["connections"]) + 1


def _without_connectivity(desk: "Desk") -> tuple[float, float]:
    """The LP bound of tiny, as a linear program, and SCIP's proven optimum below it."""
    tiny = desk.tiny
    return desk.once(pl.joint_lp_bound, tiny, "written", "as_written"), given(desk.joint(tiny).throughput)


def limitless(desk: "Desk", per_stage: int) -> int:
    """GPU sets of up to so many of the demo's GPUs, memory aside."""
    demo = desk.case("demo", per_stage)
    roomy = replace(demo, model=replace(cast(pl.Model, demo.model), layers=1, layer_weight_gb=0.001))
    return desk.once(pl.count_candidates, roomy)["allocations"]


def efficiency(desk: "Desk", efficiency: float) -> float:
    """tiny's optimum with another factor in place of 0.85."""
    tiny = desk.tiny
    return desk.once(pl.solve, replace(tiny, costs=replace(tiny.costs, efficiency=efficiency)), "aggregated").throughput


def three_unlike(desk: "Desk") -> "Problem":
    """Three unlike GPUs that are all needed, on slow links."""
    tiny = desk.tiny
    links = {("A100", "V100"): 100, ("A100", "T4"): 12, ("V100", "T4"): 12}
    three = pl.Cluster.from_counts({"A100": 1, "V100": 1, "T4": 1}, {"A100": 60, "V100": 32, "T4": 32}, links)
    return replace(
        tiny, cluster=three, model=replace(cast(pl.Model, tiny.model), layer_weight_gb=25), name="three unlike GPUs"
    )


def left_out(desk: "Desk", *families: str) -> "LeftOut":
    """Those, by the joint ILP in cvxpy without some families of rows."""
    return pl.leave_out(three_unlike(desk), *families)


def _half(desk: "Desk") -> tuple[float, float]:
    """Batch of each GPU when tiny's best stage has two, and the whole batch over two."""
    best = desk.best("tiny", 2)
    return given(best.evaluation).stages[0].batch[0], best.problem.workload.batch_size / 2


CLAIMS = (
    Claim(
        IDEA, "(Segment(9,14), frozenset({10,11})), with Segment(start_layer, segment_size)", "layers 9-14",
        _last_layer, "Segment(1,8) and Segment(9,14) on its GPUs, by evaluate", "wrong", TEXT,
        note="The second field is a size: Segment(9,14) ends at layer 22. Segment(9,6) is meant.",
    ),
    Claim(
        IDEA, "H100 gpus 0,1,2 together; A10 gpus 10,11 together", "H100, A10",
        lambda desk: f"{_types(desk, (0, 1, 2))}, {_types(desk, (10, 11))}", "types of these ids in the demo", "exact",
        TEXT,
    ),
    Claim(
        IDEA, "This eliminates the nonlinearity: each allocation has a pre-computed throughput value", "one rate each",
        lambda desk: (len(pl.enumerate_candidates(desk.tiny).throughput), desk.size("tiny", 2)["allocations"]),
        "rates listed for tiny, and its allocations", "exact", EQUAL,
    ),
    Claim(
        MATHS, "Mathematical Formulation (Correct): maximize t finds the best placement", "the truth on every case",
        lambda desk: (desk.joint(desk.tiny).throughput, desk.tried(desk.tiny)),
        "tiny by the joint ILP, and by trying all 340 placements", "exact", EQUAL,
    ),
    Claim(
        MATHS, "Sequential connectivity: Σ e[a1,a2] ≥ z[a1], Σ e[a1,a2] ≥ z[a2]", "without it links are forgotten",
        lambda desk: (desk.once(left_out, desk).verdict, desk.once(left_out, desk, "successor", "predecessor").verdict),
        "three unlike GPUs with slow links: the judge on the program, and without its hand-over rows", "exact", UNLIKE,
    ),
    Claim(
        MATHS, "t ≤ ρ[a1,a2] + M_network × (1 - e[a1,a2])", "no placement is cut off",
        lambda desk: (
            round(desk.joint(desk.slow_tiny()).details["solver_objective"], 6),
            round(desk.tried(desk.slow_tiny()), 6),
        ),
        "tiny with links ÷ 8: the program's value, and the best of all placements",
        "only under an unstated assumption", EQUAL,
        "M_network ≥ the fastest stage; the author's code has 1.1 · the fastest link",
        lambda desk: (
            round(desk.joint(desk.slow_tiny(), big_m="as_written").details["solver_objective"], 6),
            round(desk.tried(desk.slow_tiny()), 6),
        ),
        note="With the code's M the program “proves” 220.",
    ),
    Claim(
        MATHS, "t ≤ τ_alloc[a] + M_alloc × (1 - z[a])", "no placement is cut off",
        lambda desk: (
            desk.once(pl.joint_lp_bound, desk.tiny, "written", "as_written"),
            desk.best("tiny", 2).throughput,
        ),
        "LP bound of tiny with the code's Ms, and its optimum", "exact", ABOVE,
    ),
    Claim(
        MATHS, "Throughput Definitions (LINEAR!): τ_alloc[a] = throughput_value[a] × z[a]", "linear",
        _without_connectivity, "its linear relaxation has a value: LP bound and optimum of tiny", "exact", ABOVE,
        note="Linear, and redundant: τ and ρ can be put in where they are used, with the same LP bound.",
    ),
    Claim(
        RATES, "per_gpu_batch = batch_size / num_gpus", "half of the batch", _half,
        "batch of each GPU of tiny's best stage, and a half", "exact", EQUAL,
    ),
    Claim(
        RATES, "Throughput Calculation (Exact), with comm_efficiency", "no factor of its own",
        lambda desk: (efficiency(desk, 1.0), desk.best("tiny", 2).throughput),
        "optimum of tiny without the factor, and with the code's default of 0.85", "wrong", EQUAL,
        note="No measurement stands behind 0.85, nor behind any coefficient of a rate.",
    ),
    Claim(
        RATES, "Segment limited by slowest GPU", "the slowest counts",
        lambda desk: (
            desk.once(pl.evaluate, desk.tiny, pl.Placement.of([(4, (0, 2))])).throughput,
            desk.once(pl.evaluate, desk.tiny, pl.Placement.of([(4, (2, 3))])).throughput,
        ),
        "all of tiny on an A100 and a V100, and on two V100", "exact", EQUAL,
    ),
    Claim(
        RATES, "Network Throughput (Exact): transfers per second, compared with tokens/s", "the same unit",
        lambda desk: (desk.best("medium", 3).throughput, desk.best("medium", 3, link_units="tokens").throughput),
        "optimum of medium with three GPUs per stage, links as written and in tokens/s", "wrong", EQUAL,
    ),
    Claim(
        RATES, "min_bandwidth / tensor_size_gb, with tensor_size_gb = … / (1024^3)", "the same gigabyte",
        lambda desk: (
            desk.case("tiny").link_throughput(400.0),
            400.0 * 10**9 / (desk.case("tiny").tensor_gib() * 2**30),
        ),
        "transfers/s of tiny's fastest link as written, and with GB of 10^9 bytes", "cannot be decided", EQUAL,
        undecided="Bandwidths have no unit in the text.", note="Were they gigabits, it would be off by a factor of 8.",
    ),
    Claim(
        SIZE, "Variables: O(|A| + |E|)", "all counted", _not_counted,
        "variables of the demo, and 2(A + E) + 1", "exact", EQUAL,
    ),
    Claim(
        SIZE, "|A| = O(segments × gpu_combinations)", "at most 475,125",
        lambda desk: (desk.size("demo", 3)["segments"] * limitless(desk, 3), desk.size("demo", 3)["allocations"]),
        "segments times GPU sets of the demo, and its allocations", "exact", ABOVE,
    ),
    Claim(
        SIZE, "Constraints: O(layers + GPUs + |E|)", "all counted", _one_layer,
        "rows of the demo with one layer, and layers + GPUs + connections", "wrong", EQUAL,
        note="Every allocation has two rows of its own, also where nothing can follow.",
    ),
    Claim(
        SIZE, "Critical Factor: number of valid allocations |A|", "|A| ≥ |E|",
        lambda desk: (desk.size("demo", 3)["allocations"], desk.size("demo", 3)["connections"]),
        "allocations and connections of the demo", "wrong", ABOVE,
    ),
    Claim(
        SIZES, "Tiny (4 layers, 4 GPUs, max_gpus=2)", "4 layers, 4 GPUs",
        lambda desk: (desk.case("tiny").model.layers, len(desk.case("tiny").cluster)), "load_case('tiny')", "exact",
    ),
    Claim(SIZES, "Tiny: Segments: 10", "10", lambda desk: desk.size("tiny", 2)["segments"], "joint_size", "exact"),
    Claim(SIZES, "Tiny: Allocations: 100", "100", lambda desk: desk.size("tiny", 2)["allocations"], "joint_size",
          "exact"),
    Claim(SIZES, "Tiny: Variables: ~1,041", "~1,041", lambda desk: desk.size("tiny", 2)["variables"], "joint_size",
          "exact"),
    Claim(
        SIZES, "Tiny: Solve time: 0.34 seconds", "0.34 s", lambda desk: desk.joint(desk.tiny).seconds,
        "solve(tiny, 'joint'), seconds here and now", "machine-dependent", TIME,
    ),
    Claim(SIZES, "Demo: Segments: 105", "105", lambda desk: desk.size("demo", 3)["segments"], "joint_size", "exact"),
    Claim(
        SIZES, "Demo: Allocations: 345,465 ← EXPLOSION!", "345,465", lambda desk: desk.size("demo", 3)["allocations"],
        "joint_size", "only under an unstated assumption", NUMBERS, RECOVERED,
        lambda desk: desk.size("demo", 3)["segments"] * limitless(desk, 3),
    ),
    Claim(
        SIZES, "Demo: Variables: ~690K", "~690K", lambda desk: desk.size("demo", 3)["variables"], "joint_size", "wrong",
        note="It is twice the allocations: e and ρ, one of each per connection, are forgotten.",
    ),
    Claim(
        SIZES, "Demo: Solve time: Timeout", "a time limit ended it",
        lambda desk: f"{round(gigabytes(desk.size('demo', 3))):,} GB to build and solve it",
        "memory that the demo's program would need", "machine-dependent", TIME,
        note="It would not come to solving: such a program cannot be built.",
    ),
    Claim(
        SIZE, "Scalability Strategy: Limit max_gpus_per_segment", "fewer variables",
        lambda desk: (desk.size("demo", 3)["variables"], desk.size("demo", 2)["variables"]),
        "variables of the demo with three and with two GPUs per stage", "exact", ABOVE,
        note="Still more than a hundred million.",
    ),
)  # fmt: skip
