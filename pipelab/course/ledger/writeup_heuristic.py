"""The joint-ILP write-up's "Failed Attempt: Heuristic Hybrid Solver"."""

from collections import Counter
from dataclasses import replace
from math import comb, prod
from typing import TYPE_CHECKING, cast

import pipelab as pl
from pipelab import course
from pipelab.course.ledger.claims import ASSUMED, FAILS, HOLDS, Claim, reading
from pipelab.course.ledger.comparisons import ABOVE, EQUAL, NUMBERS, TEXT, UNLIKE
from pipelab.engine.formulations.type_count import average_link
from pipelab.fields import given

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import Desk
    from pipelab.problem import Problem
    from pipelab.solving import Result

ATTEMPT, WRONG = "What I Initially Implemented (Incorrectly)", 'Why The "Solution" Was Wrong'
REVEALED = "Results Comparison Revealed the Issue"
DEMO = "that it is of the demo with up to three GPUs per stage"


def _needs_two_stages(desk: "Desk") -> "Problem":
    """Two A100 that hold two of tiny's layers each."""
    tiny = desk.tiny
    two = pl.Cluster.from_counts({"A100": 2}, 80, 400)
    return replace(
        tiny,
        cluster=two,
        model=replace(cast(pl.Model, tiny.model), layer_weight_gb=25),
        max_gpus_per_stage=1,
    )


def _answer(result: "Result") -> str:
    promised = result.details["predicted"]
    return "infeasible" if promised is None else f"{promised:.6g} tokens/s"


def _classes_of(desk: "Desk", gpu_type: str) -> dict[str, int]:
    """Published cases with three or more GPUs of a type, and into how many classes links divide these."""
    found = {}
    for name in pl.cases():
        cluster = desk.case(name).cluster
        mine = [i for i, gpu in enumerate(cluster.gpus) if gpu.type == gpu_type]
        if name != "demo" and len(mine) >= 3:  # the demo's links were never published
            found[name] = len({int(c) for c in course.gpu_classes(cluster).of[mine]})
    return found


def _unlike_links(desk: "Desk") -> "Problem":
    """Three unlike GPUs, of which two are needed; the fastest has slow links."""
    tiny = desk.tiny
    links = {("A100", "V100"): 12, ("A100", "L20"): 12, ("V100", "L20"): 400}
    cluster = pl.Cluster.from_counts({"A100": 1, "V100": 1, "L20": 1}, 60, links)
    heavy = replace(cast(pl.Model, tiny.model), layer_weight_gb=25)
    return replace(
        tiny, cluster=cluster, model=heavy, max_gpus_per_stage=1, name="three unlike GPUs"
    )


def _in_tokens(desk: "Desk") -> tuple[float, float]:
    """Prediction and optimum of the same three GPUs with links in tokens/s."""
    problem = replace(_unlike_links(desk), link_units="tokens")
    return desk.predicted(problem), desk.once(pl.solve, problem, "aggregated").throughput


def _without_factor(desk: "Desk") -> tuple[float, float]:
    """Prediction for tiny without the author's factor, and the joint ILP's optimum."""
    return round(desk.predicted(desk.tiny, factor=False), 6), round(
        given(desk.joint(desk.tiny).throughput), 6
    )


def _links(desk: "Desk") -> tuple[float, float]:
    """The one rate the heuristic gives every link of tiny, and the slowest that there is, transfers/s."""
    tiny = desk.tiny
    matrix = tiny.cluster.bandwidth_matrix()
    return average_link(tiny), float(tiny.link_throughput(matrix[matrix > 0].min()))


def _share_of_the_batch(desk: "Desk", problem: "Problem") -> float:
    return problem.workload.batch_size / desk.heuristic(problem).details["stages"][0].number


def _named(desk: "Desk", problem: "Problem") -> str:
    """GPU type and number of the first stage."""
    first = desk.heuristic(problem).details["stages"][0]
    return f"{first.gpu_type}, {first.number}"


def sets_meant(desk: "Desk", problem: "Problem") -> int:
    """How many sets of GPUs the heuristic's answer may mean."""
    of_type = Counter(gpu.type for gpu in problem.cluster.gpus)
    return prod(
        comb(of_type[s.gpu_type], s.number) for s in desk.heuristic(problem).details["stages"]
    )


CLAIMS = (
    reading(
        ATTEMPT, "\"Use 3 H100s\" but which 3? gpu_0,1,2 or gpu_3,7,9?",
        "Where equal GPUs have equal links, any three are the same three: of the published cases no H100 differ in "
        "their links (classes: {}). It matters in small, for its V100 (classes: {}).",
        lambda desk: (max(_classes_of(desk, "H100").values()), max(_classes_of(desk, "V100").values())),
    ),
    Claim(
        ATTEMPT, "Meaningless Constraints: … if gt == gpu_type_name and num_gpus > gpu_id: # This makes NO SENSE!",
        "the row says nothing",
        lambda desk: tuple(
            _answer(desk.heuristic(_needs_two_stages(desk), rows=r)) for r in ("as_written", "counting")
        ),
        "two A100 that need two stages: its answer with the row, and with rows that count GPUs", FAILS, EQUAL,
        note="For GPU number 0 it lets each type hold one stage only: a meaning, and too strong a row.",
    ),
    Claim(
        ATTEMPT, "Heuristic Throughput: Used magic formulas instead of modeling actual bottlenecks",
        "the formula adds to the rate",
        lambda desk: (desk.predicted(desk.tiny), desk.predicted(desk.tiny, factor=False)),
        "its prediction for tiny with its author's factor (2 - 1/k), and without", HOLDS, ABOVE,
        note="With it two GPUs yield {} times what each yields alone with half of the batch, times two.",
        known=lambda desk: (
            desk.predicted(desk.tiny) / desk.rate("tiny", "A100", 4, 2) * desk.case("tiny").costs.efficiency,
        ),
    ),
    Claim(
        ATTEMPT, "Ignored Network Topology: Assumed uniform bandwidth, ignored specific GPU pairs", "one rate for all",
        _links, "the rate it gives every link of tiny, and the slowest there is", HOLDS, UNLIKE,
    ),
    Claim(
        WRONG, "\"gpu_type\": \"H100\", \"num_gpus\": 3", "H100, 3",
        lambda desk: _named(desk, desk.case("demo", 3)), "the heuristic's answer, demo with three GPUs per stage",
        ASSUMED,
        TEXT, DEMO, lambda desk: _named(desk, desk.tiny),
    ),
    Claim(
        WRONG, "\"workload_per_gpu\": 33.33", "33.33", lambda desk: _share_of_the_batch(desk, desk.case("demo", 3)),
        "the batch over the number of GPUs in that answer", ASSUMED, NUMBERS, DEMO,
        lambda desk: _share_of_the_batch(desk, desk.tiny),
    ),
    reading(
        WRONG, "How are they coordinated? (affects synchronization overhead)",
        "GPUs that each process whole sequences with all weights of the stage need not synchronise while they do "
        "so. The text's joint ILP charges {} for any number of them.",
        lambda desk: (desk.case("tiny").costs.efficiency,),
    ),
    Claim(
        WRONG, "I solved a fantasy problem where GPUs are fungible resources with magic communication efficiency "
        "factors",
        "treating GPUs of a type as one goes wrong, whatever the factor",
        lambda desk: (
            desk.predicted(_unlike_links(desk)), desk.once(pl.solve, _unlike_links(desk), "aggregated").throughput,
        ),
        "three GPUs of different types with different links, one per stage: its prediction, and the optimum", HOLDS,
        UNLIKE,
        note="Links are counted in transfers, as the text does; counted in tokens these do not bind, and "
        "prediction and optimum are {} and {}. On tiny, without the factor, they are {} and {}.",
        known=lambda desk: (*_in_tokens(desk), *_without_factor(desk)),
    ),
    Claim(
        REVEALED, "Heuristic Hybrid: 452.68 tokens/sec", "452.68", lambda desk: desk.predicted(desk.tiny),
        "solve(tiny, 'type_count')", "rounded",
    ),
    Claim(
        REVEALED, "meaningless - no specific GPUs", "its answer fits several sets of GPUs",
        lambda desk: (sets_meant(desk, desk.tiny), 1), "sets of tiny's GPUs that its answer may mean, and one", FAILS,
        ABOVE, note="Its answer is {}, and tiny has no other.", known=lambda desk: (desk.predicted_gpus(desk.tiny),),
    ),
    Claim(
        REVEALED, "Correct Joint ILP: 301.78 tokens/sec … \"throughput\": 301.784", "301.78 and 301.784",
        lambda desk: (desk.joint(desk.tiny).throughput,) * 2, "solve(tiny, 'joint')", "rounded",
    ),
    Claim(
        REVEALED, "The difference showed that my heuristic was overly optimistic", "it predicted too much",
        lambda desk: (desk.predicted(desk.tiny), desk.best("tiny", 2).throughput),
        "its prediction and the proven optimum", HOLDS, ABOVE,
    ),
)  # fmt: skip
