"""The joint-ILP write-up's "Failed Attempt: Heuristic Hybrid Solver"."""

from collections import Counter
from dataclasses import replace
from math import comb, prod
from typing import TYPE_CHECKING, cast

import pipelab as pl
from pipelab import course
from pipelab.course.ledger.claims import ASSUMED, FAILS, HOLDS, Claim, reading
from pipelab.course.ledger.comparisons import ABOVE, DIFFERENT, EQUAL, NUMBERS, TEXT
from pipelab.course.type_count import average_link
from pipelab.fields import given

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import SharedResults
    from pipelab.problem import Problem
    from pipelab.solving import Result

ATTEMPT, WRONG = "What I Initially Implemented (Incorrectly)", 'Why The "Solution" Was Wrong'
REVEALED = "Results Comparison Revealed the Issue"
DEMO = "that it is of the demo with up to three GPUs per stage"


def _needs_two_stages(shared: "SharedResults") -> "Problem":
    """Two A100 that hold two of tiny's layers each."""
    tiny = shared.tiny
    two = pl.Cluster.from_counts({"A100": 2}, 80, 400)
    return replace(
        tiny,
        cluster=two,
        model=replace(cast(pl.Model, tiny.model), layer_weight_gb=25),
        max_gpus_per_stage=1,
    )


def _answer(result: "Result") -> str:
    predicted = result.details["predicted"]
    return "infeasible" if predicted is None else f"{predicted:.6g} tokens/s"


def _classes_of(shared: "SharedResults", gpu_type: str) -> dict[str, int]:
    """Published cases with three or more GPUs of a type, and into how many classes links divide these."""
    found = {}
    for name in pl.cases():
        cluster = shared.case(name).cluster
        mine = [i for i, gpu in enumerate(cluster.gpus) if gpu.type == gpu_type]
        if name != "demo" and len(mine) >= 3:  # the demo's links were never published
            found[name] = len({int(c) for c in course.gpu_classes(cluster).of[mine]})
    return found


def _heterogeneous(shared: "SharedResults") -> "Problem":
    """Three heterogeneous GPUs, of which two are needed; the fastest has slow links."""
    tiny = shared.tiny
    links = {("A100", "V100"): 12, ("A100", "L20"): 12, ("V100", "L20"): 400}
    cluster = pl.Cluster.from_counts({"A100": 1, "V100": 1, "L20": 1}, 60, links)
    heavy = replace(cast(pl.Model, tiny.model), layer_weight_gb=25)
    return replace(
        tiny, cluster=cluster, model=heavy, max_gpus_per_stage=1, name="three heterogeneous GPUs"
    )


def _in_tokens(shared: "SharedResults") -> tuple[float, float]:
    """Prediction and optimum of the same three GPUs with links in tokens/s."""
    problem = replace(_heterogeneous(shared), link_units="tokens")
    return shared.predicted(problem), shared.once(pl.solve, problem, "aggregated").throughput


def _without_factor(shared: "SharedResults") -> tuple[float, float]:
    """Prediction for tiny without the author's factor, and the joint ILP's optimum."""
    return round(shared.predicted(shared.tiny, factor=False), 6), round(
        given(shared.joint(shared.tiny).throughput), 6
    )


def _links(shared: "SharedResults") -> tuple[float, float]:
    """The one rate the heuristic gives every link of tiny, and the slowest that there is, transfers/s."""
    tiny = shared.tiny
    matrix = tiny.cluster.bandwidth_matrix()
    return average_link(tiny), float(tiny.link_throughput(matrix[matrix > 0].min()))


def _share_of_the_batch(shared: "SharedResults", problem: "Problem") -> float:
    return problem.workload.batch_size / shared.heuristic(problem).details["stages"][0].number


def _named(shared: "SharedResults", problem: "Problem") -> str:
    """GPU type and number of the first stage."""
    first = shared.heuristic(problem).details["stages"][0]
    return f"{first.gpu_type}, {first.number}"


def sets_meant(shared: "SharedResults", problem: "Problem") -> int:
    """How many sets of GPUs the heuristic's answer may mean."""
    of_type = Counter(gpu.type for gpu in problem.cluster.gpus)
    return prod(
        comb(of_type[s.gpu_type], s.number) for s in shared.heuristic(problem).details["stages"]
    )


CLAIMS = (
    reading(
        ATTEMPT, "\"Use 3 H100s\" but which 3? gpu_0,1,2 or gpu_3,7,9?",
        "Where equal GPUs have equal links, any three are the same three: of the published cases no H100 differ in "
        "their links (classes: {}). It matters in small, for its V100 (classes: {}).",
        lambda shared: (max(_classes_of(shared, "H100").values()), max(_classes_of(shared, "V100").values())),
    ),
    Claim(
        ATTEMPT, "Meaningless Constraints: … if gt == gpu_type_name and num_gpus > gpu_id: # This makes NO SENSE!",
        "the row says nothing",
        lambda shared: tuple(
            _answer(shared.heuristic(_needs_two_stages(shared), rows=r)) for r in ("as_written", "counting")
        ),
        "two A100 that need two stages: its answer with the row, and with rows that count GPUs", FAILS, EQUAL,
        note="For GPU number 0 it lets each type hold one stage only: a meaning, and too strong a row.",
    ),
    Claim(
        ATTEMPT, "Heuristic Throughput: Used magic formulas instead of modeling actual bottlenecks",
        "the formula adds to the rate",
        lambda shared: (shared.predicted(shared.tiny), shared.predicted(shared.tiny, factor=False)),
        "its prediction for tiny with its author's factor (2 - 1/k), and without", HOLDS, ABOVE,
        note="With it two GPUs yield {} times what each yields alone with half of the batch, times two.",
        known=lambda shared: (
            shared.predicted(shared.tiny) / shared.rate("tiny", "A100", 4, 2) * shared.case("tiny").costs.efficiency,
        ),
    ),
    Claim(
        ATTEMPT, "Ignored Network Topology: Assumed uniform bandwidth, ignored specific GPU pairs", "one rate for all",
        _links, "the rate it gives every link of tiny, and the slowest there is", HOLDS, DIFFERENT,
    ),
    Claim(
        WRONG, "\"gpu_type\": \"H100\", \"num_gpus\": 3", "H100, 3",
        lambda shared: _named(shared, shared.case("demo", 3)), "the heuristic's answer, demo with three GPUs per stage",
        ASSUMED,
        TEXT, DEMO, lambda shared: _named(shared, shared.tiny),
    ),
    Claim(
        WRONG, "\"workload_per_gpu\": 33.33", "33.33",
        lambda shared: _share_of_the_batch(shared, shared.case("demo", 3)),
        "the batch over the number of GPUs in that answer", ASSUMED, NUMBERS, DEMO,
        lambda shared: _share_of_the_batch(shared, shared.tiny),
    ),
    reading(
        WRONG, "How are they coordinated? (affects synchronization overhead)",
        "GPUs that each process whole sequences with all weights of the stage need not synchronise while they do "
        "so. The text's joint ILP charges {} for any number of them.",
        lambda shared: (shared.case("tiny").costs.efficiency,),
    ),
    Claim(
        WRONG, "I solved a fantasy problem where GPUs are fungible resources with magic communication efficiency "
        "factors",
        "treating GPUs of a type as one goes wrong, whatever the factor",
        lambda shared: (
            shared.predicted(_heterogeneous(shared)),
            shared.once(pl.solve, _heterogeneous(shared), "aggregated").throughput,
        ),
        "three GPUs of different types with different links, one per stage: its prediction, and the optimum", HOLDS,
        DIFFERENT,
        note="Links are counted in transfers, as the text does; counted in tokens these do not bind, and "
        "prediction and optimum are {} and {}. On tiny, without the factor, they are {} and {}.",
        known=lambda shared: (*_in_tokens(shared), *_without_factor(shared)),
    ),
    Claim(
        REVEALED, "Heuristic Hybrid: 452.68 tokens/sec", "452.68", lambda shared: shared.predicted(shared.tiny),
        "solve(tiny, 'type_count')", "rounded",
    ),
    Claim(
        REVEALED, "meaningless - no specific GPUs", "its answer fits several sets of GPUs",
        lambda shared: (sets_meant(shared, shared.tiny), 1), "sets of tiny's GPUs that its answer may mean, and one",
        FAILS,
        ABOVE, note="Its answer is {}, and tiny has no other.",
        known=lambda shared: (shared.predicted_gpus(shared.tiny),),
    ),
    Claim(
        REVEALED, "Correct Joint ILP: 301.78 tokens/sec … \"throughput\": 301.784", "301.78 and 301.784",
        lambda shared: (shared.joint(shared.tiny).throughput,) * 2, "solve(tiny, 'joint')", "rounded",
    ),
    Claim(
        REVEALED, "The difference showed that my heuristic was overly optimistic", "it predicted too much",
        lambda shared: (shared.predicted(shared.tiny), shared.best("tiny", 2).throughput),
        "its prediction and the proven optimum", HOLDS, ABOVE,
    ),
)  # fmt: skip
