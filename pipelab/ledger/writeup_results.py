"""The joint-ILP write-up from "Implementation and Results" to its conclusion."""

from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, cast

import pipelab as pl
from pipelab.checked import given
from pipelab.data import author_settings
from pipelab.formulations.type_count import average_link
from pipelab.ledger.claims import Claim
from pipelab.ledger.comparisons import ABOVE, EQUAL, NUMBERS, STOPPED, TEXT, UNLIKE
from pipelab.ledger.writeup_joint import efficiency, left_out, limitless, three_unlike
from pipelab.ledger.writeup_problem import AS_RUN
from pipelab.placement import show_layers

if TYPE_CHECKING:
    from pipelab.evaluate import StageReport
    from pipelab.ledger.desk import Desk

__all__ = ["CLAIMS"]

RESULTS, DETAILS, OBSERVED = "Experimental Results", "Solution Details", "Key Observations"
DEMO, LESSONS, TABLE = "Demo Configuration Analysis", "Lessons Learned", "Comparison of Approaches"
FUTURE, END = "Future Directions", "Conclusion"


def _original(desk: "Desk") -> tuple[str, float, float]:
    """The original MILP of tiny as its author ran it: status, seconds, and the limit he set."""
    result = desk.once(pl.solve, desk.case("tiny"), "single_gpu", segments="as_run", links="all")
    return result.status, result.seconds, desk.once(author_settings, "tiny")["seconds"]


def _gpus(desk: "Desk") -> str:
    return f"{list(_stage(desk).stage.gpus)}"


def _stage(desk: "Desk") -> "StageReport":
    """The one stage of the joint ILP's answer for tiny."""
    return given(desk.joint(desk.tiny).evaluation).stages[0]


def _by_roofline(desk: "Desk", phase: str) -> float:
    """tokens/s of 4 layers of a model as wide as tiny's on two A100, by the physical model."""
    model = replace(pl.load_model("Llama-2-7B"), layers=desk.case("tiny").model.layers)
    workload = replace(desk.case("tiny").workload, phase=cast(Any, phase))
    gpus = [pl.GPU("A100-SXM-80", 80)] * 2
    return pl.Roofline().stage(model, workload, gpus, range(model.layers), "even").throughput


def _too_low(desk: "Desk", rate: float) -> float:
    """How many times faster the physical model says that stage is, in prefill or in decode, whichever is nearer."""
    return min(desk.once(_by_roofline, desk, phase) for phase in ("prefill", "decode")) / rate


def _named_and_counted(desk: "Desk") -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Optima of tiny by naming GPUs, and by counting them, for one to four per stage."""
    named = tuple(round(given(desk.joint(desk.case("tiny", k), form="tight").throughput), 9) for k in (1, 2, 3, 4))
    return named, tuple(round(given(desk.best("tiny", k).throughput), 9) for k in (1, 2, 3, 4))


def _half_the_demo(desk: "Desk") -> int:
    """Variables of the joint ILP of the demo with five GPUs of each type."""
    demo = desk.case("demo", 3)
    kinds = demo.cluster.kinds
    half = pl.Cluster.from_counts({k.type: 5 for k in kinds}, {k.type: k.memory_gb for k in kinds}, 400)
    return pl.joint_size(replace(demo, cluster=half))["variables"]


def _gaps(desk: "Desk") -> tuple[float, float]:
    """The largest gap at which a published configuration calls an answer optimal, and none."""
    gaps = [desk.once(author_settings, name).get("gap", 0.0) for name in pl.cases()]
    return max(gaps), 0.0


def _sets(desk: "Desk") -> tuple[int, ...]:
    """GPU sets of exactly one, two and three of the demo's GPUs."""
    up_to = [0, *(limitless(desk, k) for k in (1, 2, 3))]
    return tuple(b - a for a, b in pairwise(up_to))


def _stages(layers: int, free: tuple[int, ...]) -> Any:
    """Every way to lay so many layers on some of these GPUs, up to two per stage, as (layers, GPUs) pairs."""
    if not layers:
        yield ()
        return
    for first in range(1, layers + 1):
        for gpus in (chosen for k in (1, 2) for chosen in combinations(free, k)):
            for rest in _stages(layers - first, tuple(g for g in free if g not in gpus)):
                yield ((first, gpus), *rest)


def _best_of_all(desk: "Desk") -> tuple[int, int]:
    """How many placements of tiny reach its optimum, every one judged; and one."""
    tiny, best = desk.tiny, given(desk.best("tiny", 2).throughput)
    every = [pl.Placement.of(list(s)) for s in _stages(tiny.model.layers, tuple(range(len(tiny.cluster))))]
    return sum(pl.evaluate(tiny, placement).throughput >= best * (1 - 1e-9) for placement in every), 1


def _average(desk: "Desk") -> tuple[float, float]:
    """The heuristic's rate for every link of tiny, and the mean over all links."""
    tiny = desk.tiny
    matrix = tiny.cluster.bandwidth_matrix()
    pairs = [tiny.link_throughput(matrix[i, j]) for i in range(len(matrix)) for j in range(len(matrix)) if i != j]
    return average_link(tiny), float(sum(pairs) / len(pairs))


def _slopes(desk: "Desk") -> tuple[float, float]:
    """How much faster an A100 is with ten sequences more."""
    tiny = desk.case("tiny")
    at = [float(tiny.costs.gpu_throughput("A100", tiny.workload, batch, 4)) for batch in (10, 20, 30)]
    return round(at[1] - at[0], 9), round(at[2] - at[1], 9)


CLAIMS = (
    Claim(
        RESULTS, "Original, single GPU/segment: Timeout", "a time limit ended it", _original,
        "solve(tiny, 'single_gpu'), as run: status, seconds, its author's limit", "wrong", STOPPED,
    ),
    Claim(
        RESULTS, "Heuristic Hybrid: 452.68 tokens/sec, “2×A100” (vague)", "2×A100",
        lambda desk: desk.promised_gpus(desk.tiny),
        "solve(tiny, 'type_count')", "exact", TEXT, note="Not vague: tiny has no other A100.",
    ),
    Claim(RESULTS, "Correct Joint ILP: GPUs [0,1]", "[0, 1]", _gpus, "solve(tiny, 'joint')", "exact", TEXT),
    Claim(DETAILS, "start_layer 1, end_layer 4", "1–4",
          lambda desk: show_layers(_stage(desk).stage.layers), "solve(tiny, 'joint')", "exact", TEXT),
    Claim(DETAILS, "gpu_types {A100: 2}, num_gpus 2", "2×A100",
          lambda desk: f"{len(_stage(desk).gpu_types)}×{_stage(desk).gpu_types[0]}", "solve(tiny, 'joint')", "exact",
          TEXT),
    Claim(DETAILS, "throughput 301.784", "301.784", lambda desk: _stage(desk).throughput, "solve(tiny, 'joint')",
          "exact"),
    Claim(DETAILS, "workload_per_gpu 8.0", "8.0", lambda desk: _stage(desk).batch[0], "solve(tiny, 'joint')", "exact"),
    Claim(
        OBSERVED, "Specific Assignment: GPUs 0 and 1 (not just “2 GPUs”)", "these and no others", _best_of_all,
        "of all 340 placements of tiny those that reach the optimum, and one", "exact", EQUAL,
    ),
    Claim(
        OBSERVED, "Conservative Throughput: more realistic than heuristic version", "nearer to a real A100",
        lambda desk: (_too_low(desk, desk.promised(desk.tiny)), _too_low(desk, _stage(desk).throughput)),
        "by which factor a roofline of that stage is above the heuristic's number, and above the joint ILP's", "wrong",
        ABOVE, note="The rates are synthetic. That one is lower makes it no more real.",
    ),
    Claim(OBSERVED, "Load Balancing: Each GPU processes 8 samples (16/2)", "8 of 16, 2",
          lambda desk: (_stage(desk).batch[0], desk.case("tiny").workload.batch_size, len(_stage(desk).batch)),
          "solve(tiny, 'joint')", "exact"),
    Claim(OBSERVED, "Optimal Structure: Single segment covers all layers", "1 stage",
          lambda desk: len(given(desk.joint(desk.tiny).placement)), "solve(tiny, 'joint')", "exact",
          note="With these rates more layers make a GPU faster: where all fit, cutting never pays."),
    Claim(DEMO, "C(30,1) + C(30,2) + C(30,3) = 30 + 435 + 4060 per segment", "30 + 435 + 4060", _sets,
          "count_candidates, memory aside", "exact"),
    Claim(DEMO, "~105 segments × 4525 combinations", "105 × 4525",
          lambda desk: (desk.size("demo", 3)["segments"], limitless(desk, 3)), "count_candidates, memory aside",
          "exact"),
    Claim(DEMO, "Total: 475K+ allocations", "475K+", lambda desk: desk.size("demo", 3)["segments"] * limitless(desk, 3),
          "their product", "rounded", note="Two lines above it is 345,465: that is what memory leaves of these."),
    Claim(DEMO, "Reduce max_gpus_per_segment: 3→2 dramatically reduces combinations", "to a fifth or less",
          lambda desk: (desk.size("demo", 3)["allocations"] / 5, desk.size("demo", 2)["allocations"]),
          "a fifth of the demo's allocations, and those with two GPUs per stage", "exact", ABOVE,
          note="The program keeps 115 million variables."),
    Claim(DEMO, "GPU type constraints: Only allow same-type multi-GPU segments", "to a fifth or less",
          lambda desk: (
              desk.size("demo", 3)["allocations"] / 5,
              desk.size("demo", 3, same_type_stages=True)["allocations"],
          ),
          "a fifth of the demo's allocations, and those of one type", "exact", ABOVE,
          note="The program keeps 166 million variables. The optimum is the same."),
    Claim(DEMO, "Mitigation … same-type: and the optimum stays", "the same",
          lambda desk: (desk.best("demo", 3).throughput, desk.best("demo", 3, same_type_stages=True).throughput),
          "the demo's optimum with mixed stages, and with stages of one type", "exact", EQUAL),
    Claim(
        DEMO, "Hierarchical solving: Segment first, then allocate within segments", "a procedure",
        lambda desk: (desk.once(pl.solve, desk.case("small"), "even").throughput, desk.best("small").throughput),
        "small: an even split placed afterwards, and the optimum", "cannot be decided", EQUAL,
        undecided="No way of segmenting is given.",
        note="It contradicts the text's own “simultaneously, not sequentially”.",
    ),
    Claim(
        LESSONS, "Pre-enumeration is Key: … avoids nonlinear constraints", "a linear program's value is the true rate",
        lambda desk: (
            round(desk.once(left_out, desk).promised_tokens_per_s, 3),
            round(desk.tried(three_unlike(desk)), 3),
        ),
        "three unlike GPUs: the linear program in cvxpy, and the best of all placements", "exact", EQUAL,
        note="It is one way: asked rate by rate, the problem needs no list of allocations, and no big-M.",
    ),
    Claim(
        LESSONS, "Variables must track exact physical GPUs, not just counts", "counting goes wrong",
        _named_and_counted, "optima of tiny for one to four GPUs per stage, named and counted", "wrong", UNLIKE,
    ),
    Claim(
        LESSONS, "Heuristic communication factors lead to unrealistic results", "the factor makes the result",
        lambda desk: (efficiency(desk, 1.0), desk.best("tiny", 2).throughput),
        "optimum of tiny without 0.85, and with it", "exact", UNLIKE, note="Its own 0.85 is such a factor.",
    ),
    Claim(
        LESSONS, "Linear is Better: … enables guaranteed optimality", "no gap", _gaps,
        "the largest gap in a published configuration, and none", "wrong", EQUAL,
        note="Its runs stop at a gap of 1 to 5 %.",
    ),
    Claim(TABLE, "Variables, Original: ~300K (large problems)", "~300K",
          lambda desk: desk.original()["segments"] + desk.original()["connections"],
          "single_gpu_size of medium, binaries",
          "only under an unstated assumption", NUMBERS, f"that only binaries count, and {AS_RUN}",
          lambda desk: desk.original()["variables"]),
    Claim(TABLE, "Variables, Heuristic Hybrid: ~2K", "~2K",
          lambda desk: desk.promise(desk.case("demo", 3)).size["variables"], "solve(demo, 'type_count')",
          "only under an unstated assumption", NUMBERS, "that the demo is meant; tiny has 81, medium 25,951",
          lambda desk: desk.promise(desk.tiny).size["variables"]),
    Claim(TABLE, "Variables, Correct Joint ILP: ~1K (small)", "~1K", lambda desk: desk.size("tiny", 2)["variables"],
          "joint_size of tiny", "rounded"),
    Claim(TABLE, "Variables, Correct Joint ILP: ~700K (large)", "~700K", lambda desk: desk.size("demo", 3)["variables"],
          "joint_size of the demo", "wrong"),
    Claim(TABLE, "Network Modeling, Heuristic Hybrid: Average bandwidth", "1,000",
          lambda desk: _average(desk), "the heuristic's link rate, and the mean of tiny's links", "exact", EQUAL),
    Claim(TABLE, "Throughput, Original: Linear (single GPU)", "linear in the batch",
          lambda desk: _slopes(desk), "what 10 sequences more bring an A100, at 10 and at 20", "exact", EQUAL),
    Claim(TABLE, "Optimality, Original: Global (within scope)", "the optimum",
          lambda desk: (
              desk.once(pl.solve, desk.case("medium"), "single_gpu", segments="as_run").throughput,
              desk.best("medium").throughput,
          ),
          "medium by the program as run, and its optimum with one GPU per stage", "wrong", EQUAL,
          note="Segments that start off the grid of 4 are left out."),
    Claim(TABLE, "Optimality, Heuristic Hybrid: Not guaranteed", "not the optimum",
          lambda desk: (desk.promised(desk.tiny), desk.best("tiny", 2).throughput),
          "its promise for tiny, and the optimum", "exact", UNLIKE),
    Claim(TABLE, "Optimality, Correct Joint ILP: Global", "the optimum",
          lambda desk: (desk.joint(desk.tiny, big_m="as_written").throughput, desk.best("tiny", 2).throughput),
          "tiny with the code's Ms, and the optimum", "exact", EQUAL,
          note="On tiny. With slow links the code's M goes wrong."),
    Claim(TABLE, "Scalability: Original poor, Heuristic Hybrid good, Correct Joint ILP requires management", "an order",
          lambda desk: (
              desk.original("all")["variables"],
              desk.promise(desk.case("demo", 3)).size["variables"],
              desk.size("medium", 2)["variables"],
          ),
          "variables of medium's original MILP, of the demo's heuristic, of medium's joint ILP with two GPUs per stage",
          "cannot be decided", undecided="Words that no number is given for.",
          note="By size the joint ILP is by far the worst."),
    Claim(TABLE, "Formulation, Heuristic Hybrid: Pseudo-MILP", "no MILP",
          lambda desk: (
              desk.promise(desk.tiny).details["solver_status"],
              desk.joint(desk.tiny).details["solver_status"],
          ),
          "what SCIP says of it, and of the joint ILP", "wrong", UNLIKE, note="It is a MILP, of another problem."),
    Claim(FUTURE, "Use problem structure to eliminate dominated allocations", "fewer are enough",
          lambda desk: (desk.size("medium", 3)["allocations"], desk.best("medium", 3).size["variables"]),
          "allocations of medium, three GPUs per stage, and variables of the largest question by classes", "exact",
          ABOVE,
          note="Symmetry is such a structure: equal GPUs are counted."),
    Claim(
        FUTURE, "Column generation or branch-and-price for very large instances", "needed",
        lambda desk: desk.best("medium", 3).seconds,
        "seconds to prove the optimum of medium, three GPUs per stage, by classes",
        "cannot be decided", NUMBERS, undecided="Nothing is said of which instances.",
        note="For none of the published cases is it needed.",
    ),
    Claim(
        END, "Developed a mathematically rigorous ILP without heuristics", "no factor without a source",
        lambda desk: (desk.case("tiny").costs.efficiency, 1.0), "the factor on stages of several GPUs, and none",
        "wrong", EQUAL,
    ),
    Claim(
        END, "Created working solver that finds provably optimal solutions", "a bound that meets it",
        lambda desk: (desk.joint(desk.tiny).bound, desk.joint(desk.tiny).throughput),
        "proven bound and throughput of tiny", "exact", EQUAL,
    ),
    Claim(
        END, "significant advance over the original approach", "more tokens/s",
        lambda desk: (desk.best("medium", 2).throughput, desk.best("medium").throughput),
        "optimum of medium with two GPUs per stage, and with one", "exact", ABOVE,
    ),
    Claim(
        END, "enabling true hybrid parallelism strategies", "stages of several GPUs in a pipeline",
        lambda desk: (sum(len(stage.gpus) > 1 for stage in given(desk.best("medium", 2).placement).stages), 1),
        "stages of two GPUs in the optimum of medium, and one", "exact", ABOVE,
    ),
    Claim(
        END, "finds provably optimal hybrid parallelism strategies", "a pipeline",
        lambda desk: (len(given(desk.joint(desk.tiny).placement)), 1),
        "stages of the one result that it reports, and one", "wrong", ABOVE,
        note="One stage: data parallel, no pipeline.",
    ),
    Claim(
        END, "problem size remains a challenge for very large clusters", "steep growth",
        lambda desk: (desk.size("demo", 3)["variables"], 32 * _half_the_demo(desk)),
        "variables of the demo, and 32 times those with half of its GPUs", "exact", ABOVE,
        note="A challenge of the formulation: by classes every published case is proven within a second.",
    ),
)  # fmt: skip
