"""The joint-ILP write-up's "Implementation and Results": what came out for tiny and for the demo."""

from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, cast

import pipelab as pl
from pipelab.course.ledger.claims import HOLDS, Claim, reading
from pipelab.course.ledger.comparisons import ABOVE, EQUAL, REPORTED, TEXT
from pipelab.course.ledger.writeup_joint import limitless
from pipelab.fields import given

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import SharedResults
    from pipelab.evaluation import StageReport
    from pipelab.solving import Result

RESULTS, DEMO = "Experimental Results", "Demo Configuration Analysis"


def _original(shared: "SharedResults") -> "Result":
    """The original MILP of tiny as its author ran it."""
    return shared.once(pl.solve, shared.case("tiny"), "single_gpu", segments="as_run")


def _stage(shared: "SharedResults") -> "StageReport":
    """The one stage of the joint ILP's answer for tiny."""
    return given(shared.joint(shared.tiny).evaluation).stages[0]


def _by_roofline(shared: "SharedResults", phase: str) -> float:
    """tokens/s of 4 layers of a model as wide as tiny's on two A100, by the physical model."""
    model = replace(pl.load_model("Llama-2-7B"), layers=shared.case("tiny").model.layers)
    workload = replace(shared.case("tiny").workload, phase=cast(Any, phase))
    gpus = [pl.GPU("A100-SXM-80", 80)] * 2
    return pl.Roofline().stage(model, workload, gpus, range(model.layers), "even").throughput


def _too_low(shared: "SharedResults", rate: float) -> float:
    """How many times faster the physical model says that stage is, in prefill or in decode, whichever is nearer."""
    return min(shared.once(_by_roofline, shared, phase) for phase in ("prefill", "decode")) / rate


def _sets(shared: "SharedResults") -> tuple[int, ...]:
    """GPU sets of exactly one, two and three of the demo's GPUs."""
    up_to = [0, *(limitless(shared, k) for k in (1, 2, 3))]
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


def _best_of_all(shared: "SharedResults") -> tuple[int, int]:
    """How many placements of tiny reach its optimum, each one evaluated; and one."""
    tiny, best = shared.tiny, given(shared.best("tiny", 2).throughput)
    every = [
        pl.Placement.of(list(s))
        for s in _stages(tiny.model.layers, tuple(range(len(tiny.cluster))))
    ]
    return sum(
        pl.evaluate(tiny, placement).throughput >= best * (1 - 1e-9) for placement in every
    ), 1


CLAIMS = (
    Claim(
        RESULTS, "Original | Single GPU/segment | Timeout", "optimal at 217.52, says the author's "
        "config/tiny/solution.json",
        lambda shared: _original(shared).throughput,
        "solve(tiny, 'single_gpu'), the program as its author ran it, proven", "wrong", REPORTED,
        note="The author's own solution file has solve_status 2, optimal, at that rate. Here SCIP ends {}.",
        known=lambda shared: (_original(shared).status,),
    ),
    Claim(
        RESULTS, "Heuristic Hybrid | GPU counts | 452.68 tokens/sec | \"2×A100\" (vague)", "2×A100",
        lambda shared: shared.predicted_gpus(shared.tiny), "solve(tiny, 'type_count')", "exact", TEXT,
    ),
    Claim(RESULTS, "\"gpu_ids\": [0, 1]", "[0, 1]", lambda shared: f"{list(_stage(shared).stage.gpus)}",
          "solve(tiny, 'joint')", "exact", TEXT),
    Claim(
        RESULTS, "\"start_layer\": 1, \"end_layer\": 4, \"segment_size\": 4", "1, 4 and 4",
        lambda shared: (
            _stage(shared).stage.layers.start + 1, _stage(shared).stage.layers.stop, len(_stage(shared).stage.layers),
        ),
        "solve(tiny, 'joint')", "exact",
    ),
    Claim(RESULTS, "\"gpu_types\": {\"A100\": 2}, \"num_gpus\": 2", "A100, 2",
          lambda shared: f"{_stage(shared).gpu_types[0]}, {len(_stage(shared).gpu_types)}", "solve(tiny, 'joint')",
          "exact",
          TEXT),
    Claim(
        RESULTS, "Specific Assignment: GPUs 0 and 1 (not just \"2 GPUs\")", "these and no others", _best_of_all,
        "of all placements of tiny those that reach the optimum, and one", HOLDS, EQUAL,
    ),
    reading(
        RESULTS, "Conservative Throughput: More realistic than heuristic version",
        "The rates are synthetic, and that one is lower makes it no more real: a roofline of two real A100 is {} times "
        "the heuristic's number and {} times the joint ILP's.",
        lambda shared: (_too_low(shared, shared.predicted(shared.tiny)), _too_low(shared, _stage(shared).throughput)),
    ),
    Claim(RESULTS, "\"workload_per_gpu\": 8.0 … Each GPU processes 8 samples (16/2)", "8.0, 8, 16 and 2",
          lambda shared: (*_stage(shared).batch, shared.case("tiny").workload.batch_size, len(_stage(shared).batch)),
          "solve(tiny, 'joint')", "exact"),
    Claim(RESULTS, "Optimal Structure: Single segment covers all layers", "1 stage",
          lambda shared: (len(given(shared.joint(shared.tiny).placement)), 1),
          "stages of solve(tiny, 'joint'), and one",
          HOLDS, EQUAL, note="With these rates more layers make a GPU faster: where all fit, cutting never pays."),
    Claim(DEMO, "C(30,1) + C(30,2) + C(30,3) = 30 + 435 + 4060 per segment", "30 + 435 + 4060", _sets,
          "count_candidates, memory aside", "exact"),
    Claim(DEMO, "~105 segments × 4525 combinations = 475K+ allocations", "~105, 4525 and 475K+",
          lambda shared: (
              shared.size("demo", 3)["segments"], limitless(shared, 3),
              shared.size("demo", 3)["segments"] * limitless(shared, 3),
          ),
          "count_candidates, memory aside", "rounded", note="Two lines above it says {}: what memory leaves of these.",
          known=lambda shared: (shared.size("demo", 3)["allocations"],)),
    Claim(DEMO, "Reduce max_gpus_per_segment: 3→2 dramatically reduces combinations", "fewer than half as many",
          lambda shared: (limitless(shared, 3), 2 * limitless(shared, 2)),
          "GPU sets per segment with up to three GPUs, and twice those with two", HOLDS, ABOVE,
          note="The demo's allocations go from {} to {}; the program keeps {} variables.",
          known=lambda shared: (
              *(shared.size("demo", most)["allocations"] for most in (3, 2)), shared.size("demo", 2)["variables"],
          )),
    Claim(DEMO, "GPU type constraints: Only allow same-type multi-GPU segments", "fewer allocations",
          lambda shared: (
              shared.size("demo", 3)["allocations"], shared.size("demo", 3, same_type_stages=True)["allocations"],
          ),
          "the demo's allocations, and those of one type", HOLDS, ABOVE,
          note="The program keeps {} variables. The demo's optimum is {} with mixed stages and {} without.",
          known=lambda shared: (
              shared.size("demo", 3, same_type_stages=True)["variables"], shared.best("demo", 3).throughput,
              shared.best("demo", 3, same_type_stages=True).throughput,
          )),
    reading(
        DEMO, "Hierarchical solving: Segment first, then allocate within segments",
        "No way of segmenting is given. An even split that is placed afterwards yields {} on small, the optimum is "
        "{}; it contradicts the text's own \"simultaneously, not sequentially\".",
        lambda shared: (shared.once(pl.solve, shared.case("small"), "even").throughput,
            shared.best("small").throughput),
    ),
)  # fmt: skip
