"""The joint-ILP write-up's "Failed Attempt: Heuristic Hybrid Solver"."""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pipelab as pl
from pipelab.checked import given
from pipelab.formulations.type_count import average_link
from pipelab.ledger.claims import Claim
from pipelab.ledger.comparisons import ABOVE, EQUAL, NUMBERS, TEXT, UNLIKE

if TYPE_CHECKING:
    from pipelab.ledger.desk import Desk
    from pipelab.problem import Problem
    from pipelab.result import Result

__all__ = ["CLAIMS"]

ATTEMPT, WRONG, REVEALED = "What I Initially Implemented", "Why The “Solution” Was Wrong", "Results Comparison"


def _needs_two_stages(desk: "Desk") -> "Problem":
    """Two A100 that hold two of tiny's layers each."""
    tiny = desk.tiny
    two = pl.Cluster.from_counts({"A100": 2}, 80, 400)
    return replace(
        tiny, cluster=two, model=replace(cast(pl.Model, tiny.model), layer_weight_gb=25), max_gpus_per_stage=1
    )


def _answer(result: "Result") -> str:
    promised = result.details["promised"]
    return "infeasible" if promised is None else f"{promised:.6g} tokens/s"


def _classes_of(desk: "Desk", gpu_type: str) -> dict[str, int]:
    """Published cases with three or more GPUs of a type, and into how many classes links divide these."""
    found = {}
    for name in pl.cases():
        cluster = desk.case(name).cluster
        mine = [i for i, gpu in enumerate(cluster.gpus) if gpu.type == gpu_type]
        if name != "demo" and len(mine) >= 3:  # the demo's links were never published
            found[name] = len({int(c) for c in pl.gpu_classes(cluster).of[mine]})
    return found


def _unlike_links(desk: "Desk") -> "Problem":
    """Three unlike GPUs, of which two are needed; the fastest has slow links."""
    tiny = desk.tiny
    links = {("A100", "V100"): 12, ("A100", "L20"): 12, ("V100", "L20"): 400}
    cluster = pl.Cluster.from_counts({"A100": 1, "V100": 1, "L20": 1}, 60, links)
    heavy = replace(cast(pl.Model, tiny.model), layer_weight_gb=25)
    return replace(tiny, cluster=cluster, model=heavy, max_gpus_per_stage=1, name="three unlike GPUs")


def _links(desk: "Desk") -> tuple[float, float]:
    """The one rate the heuristic gives every link of tiny, and the slowest that there is, transfers/s."""
    tiny = desk.tiny
    matrix = tiny.cluster.bandwidth_matrix()
    return average_link(tiny), float(tiny.link_throughput(matrix[matrix > 0].min()))


def _share_of_the_batch(desk: "Desk") -> float:
    demo = desk.case("demo", 3)
    return demo.workload.batch_size / desk.promise(demo).details["stages"][0].number


CLAIMS = (
    Claim(
        ATTEMPT, "“Use 3 H100s” but which 3? gpu_0,1,2 or gpu_3,7,9?", "it matters",
        lambda desk: (max(_classes_of(desk, "H100").values()), 1),
        "classes of unlike links among three or more H100 of a published case, and one", "wrong", ABOVE,
        note="Where equal GPUs have equal links any three are the same three. It matters in small, for its V100.",
    ),
    Claim(
        ATTEMPT, "if gt == gpu_type_name and num_gpus > gpu_id: This makes NO SENSE!", "the row says nothing",
        lambda desk: tuple(_answer(desk.promise(_needs_two_stages(desk), rows=r)) for r in ("as_written", "counting")),
        "two A100 that need two stages: its answer with the row, and with rows that count GPUs", "wrong", EQUAL,
        note="For GPU number 0 it lets each type hold one stage only: a meaning, and too strong a row.",
    ),
    Claim(
        ATTEMPT, "Heuristic Throughput: used magic formulas instead of modeling actual bottlenecks",
        "more than is true",
        lambda desk: (desk.promised(desk.tiny), desk.promised(desk.tiny, factor=False)),
        "its promise for tiny with its factor (2 - 1/k), and without", "exact", ABOVE,
    ),
    Claim(
        ATTEMPT, "Ignored Network Topology: assumed uniform bandwidth, ignored specific GPU pairs", "one rate for all",
        _links, "the rate it gives every link of tiny, and the slowest there is", "exact", UNLIKE,
    ),
    Claim(
        ATTEMPT, "Ignored Network Topology … and that misleads", "it promises too much",
        lambda desk: (
            desk.promised(_unlike_links(desk)),
            desk.once(pl.solve, _unlike_links(desk), "aggregated").throughput,
        ),
        "three unlike GPUs with unlike links: its promise, and the optimum", "exact", ABOVE,
    ),
    Claim(
        WRONG, "Example Output: gpu_type H100, num_gpus 3", "3×H100",
        lambda desk: desk.promised_gpus(desk.case("demo", 3)),
        "the heuristic's answer for the demo, three GPUs per stage", "only under an unstated assumption", TEXT,
        "that it is of the demo with up to three GPUs per stage",
    ),
    Claim(
        WRONG, "Example Output: workload_per_gpu 33.33", "33.33",
        _share_of_the_batch,
        "the demo's batch over the number of GPUs in that answer", "rounded",
    ),
    Claim(
        WRONG, "I solved a fantasy problem where GPUs are fungible resources", "that is the mistake",
        lambda desk: (
            round(desk.promised(desk.tiny, factor=False), 6),
            round(given(desk.joint(desk.tiny).throughput), 6),
        ),
        "the heuristic without its factor, GPUs fungible as before, and the joint ILP", "wrong", UNLIKE,
    ),
    Claim(
        WRONG, "… with magic communication efficiency factors", "a factor above 1",
        lambda desk: (
            desk.promised(desk.tiny) / desk.rate("tiny", "A100", 4, 2) * desk.case("tiny").costs.efficiency,
            1,
        ),
        "what two GPUs yield beyond twice one with half the batch", "exact", ABOVE,
        note="The joint ILP keeps a factor too: 0.85, whatever the links.",
    ),
    Claim(
        REVEALED, "Heuristic Hybrid: 452.68 tokens/sec", "452.68",
        lambda desk: desk.promised(desk.tiny), "solve(tiny, 'type_count')", "rounded", NUMBERS,
    ),
    Claim(
        REVEALED, "Correct Joint ILP: 301.78 tokens/sec", "301.78",
        lambda desk: desk.joint(desk.tiny).throughput, "solve(tiny, 'joint')", "rounded", NUMBERS,
    ),
    Claim(
        REVEALED, "The difference showed that my heuristic was overly optimistic", "it promised too much",
        lambda desk: (desk.promised(desk.tiny), desk.best("tiny", 2).throughput),
        "its promise and the proven optimum", "exact", ABOVE,
    ),
    Claim(
        REVEALED, "452.68 … meaningless - no specific GPUs", "two A100 may be several pairs",
        lambda desk: (sum(gpu.type == "A100" for gpu in desk.case("tiny").cluster.gpus), 2),
        "A100 in tiny, and two", "wrong", ABOVE, note="There is one pair of A100, so its answer names it.",
    ),
)  # fmt: skip
