"""The joint-ILP write-up's lessons, its comparison of approaches, its outlook and its conclusion."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pipelab as pl
from pipelab import course
from pipelab.course.ledger.claims import ASSUMED, FAILS, HOLDS, TRIED, Claim, reading
from pipelab.course.ledger.comparisons import ABOVE, DIFFERENT, EQUAL, EVERY, NUMBERS
from pipelab.course.ledger.trials import (
    exact_bottleneck,
    exact_pairs,
    global_optimum,
    straight_in_the_batch,
)
from pipelab.course.ledger.writeup_heuristic import sets_meant
from pipelab.course.ledger.writeup_joint import efficiency, left_out, three_heterogeneous, with_ms
from pipelab.course.type_count import average_link
from pipelab.fields import given
from pipelab.io.cases_csv import author_settings

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import SharedResults

LESSONS, METHOD, TABLE = "Technical Insights", "Methodological Lessons", "Comparison of Approaches"
FUTURE, END = "Future Directions", "Conclusion"


def _named_and_counted(shared: "SharedResults") -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Optima of tiny by naming GPUs, and by counting them, for one to four per stage."""
    named = tuple(
        round(given(shared.joint(shared.case("tiny", k), form="tight").throughput), 9)
        for k in (1, 2, 3, 4)
    )
    return named, tuple(round(given(shared.best("tiny", k).throughput), 9) for k in (1, 2, 3, 4))


def _half_the_demo(shared: "SharedResults") -> int:
    """Variables of the joint ILP of the demo with five GPUs of each type."""
    demo = shared.case("demo", 3)
    kinds = demo.cluster.kinds
    half = pl.Cluster.from_counts(
        {k.type: 5 for k in kinds}, {k.type: k.memory_gb for k in kinds}, 400
    )
    return course.joint_size(replace(demo, cluster=half))["variables"]


def _gaps(shared: "SharedResults") -> tuple[float, float]:
    """The least and the largest gap at which a published configuration calls an answer optimal."""
    settings = [shared.once(author_settings, name) for name in pl.cases()]
    gaps = [found["gap"] for found in settings if "gap" in found]
    return min(gaps), max(gaps)


def _average(shared: "SharedResults") -> tuple[float, float]:
    """The heuristic's rate for every link of tiny, and the mean over all links."""
    tiny = shared.tiny
    matrix = tiny.cluster.bandwidth_matrix()
    pairs = [
        tiny.link_throughput(matrix[i, j])
        for i in range(len(matrix))
        for j in range(len(matrix))
        if i != j
    ]
    return average_link(tiny), float(sum(pairs) / len(pairs))


def _classes(shared: "SharedResults", name: str) -> int:
    """Classes of interchangeable GPUs in a case."""
    return len({int(c) for c in course.gpu_classes(shared.case(name).cluster).of})


def _twice_the_allocations(shared: "SharedResults") -> tuple[int, int]:
    """The rule behind the demo's ~690K, on tiny; and tiny's variables."""
    size = shared.size("tiny", 2)
    return 2 * size["allocations"], size["variables"]


def _widest(shared: "SharedResults") -> tuple[int, int]:
    """GPUs of the widest stage of tiny, by the joint ILP and by the original program."""
    answers = shared.joint(shared.tiny), shared.once(pl.solve, shared.case("tiny"), "single_gpu")
    joint, original = (max(len(stage.gpus) for stage in given(a.placement).stages) for a in answers)
    return joint, original


def _kinds_of_variables(shared: "SharedResults") -> tuple[int, int]:
    """Whole-number and continuous variables of tiny's joint ILP."""
    program, _ = shared.once(course.joint_program, shared.tiny)
    whole = int(sum(program.integer))
    return whole, len(program.integer) - whole


CLAIMS = (
    Claim(
        LESSONS, "Pre-enumeration is Key: Converting the joint problem to pure allocation selection avoids nonlinear "
        "constraints", "a linear program's value is the true rate",
        lambda shared: (
            round(shared.once(left_out, shared).predicted_tokens_per_s, 3),
            round(shared.tried(three_heterogeneous(shared)), 3),
        ),
        "three GPUs of different types: the linear program in cvxpy, and the best of all placements", HOLDS, EQUAL,
        note="It is one way: as a feasibility problem for one rate after the other it needs no list of "
        "allocations, and no big-M.",
    ),
    Claim(
        LESSONS, "Variables must track exact physical GPUs, not just counts", "counting goes wrong", _named_and_counted,
        "optima of tiny for one to four GPUs per stage, with named GPUs and with counts by class", FAILS, DIFFERENT,
        note="Counts by type go wrong where links differ; counts by class of interchangeable GPUs are enough.",
    ),
    reading(
        LESSONS, "Heuristic communication factors lead to unrealistic results",
        "So does its own: without it the optimum of tiny is {} instead of {}.",
        lambda shared: (efficiency(shared, 1.0), shared.best("tiny", 2).throughput),
    ),
    reading(
        LESSONS, "Problem Size Management: Combinatorial explosion requires careful constraint design",
        "Or another way to write the problem: with counts per class of GPUs the largest subproblem of medium with "
        "three GPUs per stage has {} variables; the joint ILP would have {}.",
        lambda shared: (shared.best("medium", 3).size["variables"], shared.size("medium", 3)["variables"]),
    ),
    reading(
        METHOD, "Formulation First: Spend time getting the mathematical model right before coding",
        "Good advice. The model leaves its two Ms open; the author's code fills them in, one of them wrongly.",
    ),
    reading(
        METHOD, "Validate Incrementally: Test on small problems before scaling up",
        "Good advice: the rule behind the demo's number of variables gives {} for tiny, where the same list prints the "
        "right {}.",
        _twice_the_allocations,
    ),
    reading(
        METHOD, "Question \"Solutions\": If results seem too good, investigate the modeling assumptions",
        "Good advice: a lower bar would have found the demo's balanced pipeline as well, since one H100 alone "
        "yields {}.",
        lambda shared: (shared.best("demo").throughput,),
    ),
    reading(
        METHOD, "Linear is Better: Avoiding nonlinear constraints (like division) enables guaranteed optimality",
        "A linear program can be solved to a proven optimum. The author's configurations stop at gaps of {} to {}.",
        _gaps,
    ),
    Claim(
        TABLE, "Problem Scope | Single GPU/segment | Multi-GPU counts | Specific GPU allocation",
        "the joint ILP puts several GPUs on a stage, the original one", _widest,
        "GPUs of the widest stage of tiny, by the joint ILP and by the original program", HOLDS, ABOVE,
    ),
    Claim(
        TABLE, "Formulation | MILP | Pseudo-MILP", "the heuristic's is none",
        lambda shared: (
            shared.heuristic(shared.tiny).details["solver_status"], shared.joint(shared.tiny).details["solver_status"],
        ),
        "what SCIP says of it, and of the joint ILP", FAILS, DIFFERENT, note="It is a MILP, of another problem.",
    ),
    Claim(
        TABLE, "Formulation | MILP | Pseudo-MILP | Pure MILP", "the joint ILP has both kinds of variables",
        lambda shared: (min(_kinds_of_variables(shared)), 0), "the rarer kind of variable in tiny's program, and none",
        HOLDS,
        ABOVE, note="{} whole-number variables and {} continuous ones, and linear rows.", known=_kinds_of_variables,
    ),
    Claim(
        TABLE, "Variables | ~300K (large problems) | ~2K", "~2K",
        lambda shared: shared.heuristic(shared.case("demo", 3)).size["variables"], "solve(demo, 'type_count')", ASSUMED,
        NUMBERS,
        "that the demo is meant", lambda shared: shared.heuristic(shared.tiny).size["variables"],
    ),
    Claim(
        TABLE, "GPU Assignment | Specific GPU IDs | GPU type + count | Specific GPU IDs",
        "a count may mean several sets of GPUs",
        lambda shared: (sets_meant(shared, shared.case("demo", 3)), 1),
        "sets of GPUs that the heuristic's answer for the demo may mean, and one", HOLDS, ABOVE,
    ),
    Claim(
        TABLE, "Network Modeling | Exact GPU pairs | Average bandwidth | Exact GPU pairs", "the average",
        _average, "the heuristic's link rate, and the mean of tiny's links", HOLDS, EQUAL,
    ),
    Claim(
        TABLE, "Network Modeling | Exact GPU pairs", "a connection is as fast as its pair of GPUs",
        lambda shared: exact_pairs(shared, 1), "connections of small's first two layers, one GPU per stage", TRIED,
        EVERY,
    ),
    Claim(
        TABLE, "Exact GPU pairs | Average bandwidth | Exact GPU pairs", "a connection is as fast as its slowest pair",
        lambda shared: exact_pairs(shared, 2), "connections of small's first two layers, two GPUs per stage", TRIED,
        EVERY,
        note="Charging the slowest pair with the whole tensor is a choice: two stages of two GPUs could send halves.",
    ),
    Claim(
        TABLE, "Throughput | Linear (single GPU)", "ten sequences more bring the same at any batch",
        straight_in_the_batch, "8 GPU types, batches of 10 to 40", TRIED, EVERY,
    ),
    Claim(
        TABLE, "Throughput | Linear (single GPU) | Heuristic formula | Exact bottleneck",
        "t is the rate of its placement, recomputed", exact_bottleneck,
        "random problems with several stages, by the joint ILP and by evaluate", TRIED, EVERY,
        note="Exact by its own rates of stages, which hold a factor (see Throughput Calculation).",
    ),
    Claim(TABLE, "Optimality | Global (within scope)", "the optimum with one GPU per stage",
          lambda shared: (
              shared.once(pl.solve, shared.case("medium"), "single_gpu", segments="as_run").throughput,
              shared.best("medium").throughput,
          ),
          "medium by the author's program, and its optimum with one GPU per stage", FAILS, EQUAL,
          note="Segments that start off the grid of 4 are left out."),
    Claim(TABLE, "Optimality | Global (within scope) | Not guaranteed", "another number than the optimum",
          lambda shared: (shared.predicted(shared.tiny), shared.best("tiny", 2).throughput),
          "its prediction for tiny, and the optimum", HOLDS, DIFFERENT),
    Claim(
        TABLE, "Optimality | Global (within scope) | Not guaranteed | Global", "the best of all placements",
        global_optimum, "random problems with several stages, by the joint ILP and by trying every placement", TRIED,
        EVERY, note="With an M_network that is large enough; the text gives it no value.",
    ),
    reading(
        TABLE, "Scalability | Poor (large problems) | Good | Requires management",
        "Words without a number. In variables: {} for medium's original program, {} for the demo's heuristic, {} for "
        "medium's joint ILP with two GPUs per stage, by far the most.",
        lambda shared: (
            shared.original("all")["variables"], shared.heuristic(shared.case("demo", 3)).size["variables"],
            shared.size("medium", 2)["variables"],
        ),
    ),
    reading(
        FUTURE, "Hierarchical Decomposition: Two-stage optimization to manage problem size",
        "No published case needs it: medium with three GPUs per stage is solved in one go, {} tokens/s with a bound "
        "of {}.",
        lambda shared: (shared.best("medium", 3).throughput, shared.best("medium", 3).bound),
    ),
    reading(
        FUTURE, "Advanced Pruning: Use problem structure to eliminate dominated allocations",
        "The structure is there: medium with three GPUs per stage has {} allocations, and its GPUs fall into {} "
        "classes.",
        lambda shared: (shared.size("medium", 3)["allocations"], _classes(shared, "medium")),
    ),
    reading(
        FUTURE, "Approximate Methods: Column generation or branch-and-price for very large instances",
        "Nothing is said of which instances. Every published case is proven optimal here without; medium with "
        "three GPUs per stage took {} s.",
        lambda shared: (round(shared.best("medium", 3).seconds, 3),),
    ),
    reading(
        FUTURE, "Real System Integration: Account for actual framework overheads and communication patterns",
        "pipelab has a roofline model from the facts of real GPUs beside these rates, and simulates schedules with "
        "transfers; the text does not.",
    ),
    reading(
        END, "Correct Formulation: Developed a mathematically rigorous ILP without heuristics",
        "Its communication efficiency, {} by default in the author's code, is a factor without a source.",
        lambda shared: (shared.case("tiny").costs.efficiency,),
    ),
    Claim(
        END, "Implementation: Created working solver that finds provably optimal solutions",
        "with the author's Ms, the optimum",
        lambda shared: (
            with_ms(shared, "as_written"), round(shared.tried(shared.slow_tiny()), 6),
        ),
        "tiny with links ÷ 8: what the program with the author's Ms proves, and the best of all placements", FAILS,
        EQUAL,
        note="Its M for connections is 1.1 times the fastest link: too small wherever links are slow. On tiny "
        "itself it is right.",
    ),
    reading(
        END, "represents a significant advance over the original approach",
        "More tokens/s on medium: {} with two GPUs per stage, {} with one.",
        lambda shared: (shared.best("medium", 2).throughput, shared.best("medium").throughput),
    ),
    Claim(
        END, "enabling true hybrid parallelism strategies", "stages of several GPUs in a pipeline",
        lambda shared: (sum(len(stage.gpus) > 1 for stage in given(shared.best("medium", 2).placement).stages), 1),
        "stages of two GPUs in the optimum of medium, and one", HOLDS, ABOVE,
        note="The one result that it reports has a single stage: data parallel, no pipeline.",
    ),
    reading(
        END, "problem size remains a challenge for very large clusters",
        "A challenge of the formulation: with half of the demo's GPUs it has {} variables, with all of them {}. "
        "Counted by class, the demo's GPUs are {} kinds, however many there are.",
        lambda shared: (_half_the_demo(shared), shared.size("demo", 3)["variables"], _classes(shared, "demo")),
    ),
)  # fmt: skip
