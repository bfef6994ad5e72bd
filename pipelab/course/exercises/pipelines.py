"""Exercises of notebooks 07 and 08: schedules, and real GPUs."""

from functools import cache
from typing import Any

from pipelab.course.exercises.bisection import where_it_turns
from pipelab.course.exercises.contest import Contest
from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.fields import given


@cache
def _message_that_costs_its_lead(name: str) -> float:
    """Where a schedule loses time with every unit of `comm` and GPipe less."""
    from pipelab.engine.schedules import schedule
    from pipelab.engine.timeline import StageCosts, simulate

    one, other = schedule(name, 4, 8), schedule("GPipe", 4, 8)

    def ahead(comm: float) -> bool:
        costs = StageCosts(1, 1, 1, comm=comm)
        return simulate(one, costs).makespan < simulate(other, costs).makespan

    return where_it_turns(ahead, 0.0, 4.0)


@cache
def _sequences_for(factor: float, layers: range = range(1, 2)) -> float:
    """The least batch on which an A100 spends so many times the time of one sequence."""
    from pipelab.cluster import GPU
    from pipelab.hardware.known_models import load_model
    from pipelab.hardware.roofline import Roofline
    from pipelab.problem import Workload

    def seconds(b: Any) -> Any:
        gpu, load = GPU("A100-SXM-40", 40), Workload(2048, b, "decode")
        return Roofline().pass_seconds(load_model("Llama-3-70B"), load, gpu, layers)

    return next(b for b in range(1, 10_000) if seconds(b) >= factor * seconds(1))


@cache
def _prices(precision: str) -> tuple[tuple[float, float], ...]:
    """Tokens/s and dollars per million of them, for every compromise between rate and dollars per hour."""
    from pipelab.engine.methods.prices import price_per_hour, usd_per_million_tokens
    from pipelab.engine.methods.trade_offs import trade_off
    from pipelab.hardware.known_clusters import load_cluster
    from pipelab.hardware.known_models import load_model
    from pipelab.hardware.roofline import Roofline
    from pipelab.problem import Problem, Workload

    llama = load_model("Llama-3-70B", precision=precision)
    load = Workload(2048, 16, "decode", in_flight=21)
    problem = Problem(load_cluster("helix-single24"), llama, load, Roofline(), link_units="tokens")
    points = trade_off(problem, "usd_per_hour").points
    prices = [given(price_per_hour(problem, given(p.placement))) for p in points]
    rates = [given(p.throughput) for p in points]
    return tuple(zip(rates, map(usd_per_million_tokens, prices, rates), strict=True))


def _cheapest(at_least: float = 0) -> float:
    return min(usd for rate, usd in _prices("fp8") if rate >= at_least)


PIPELINES: dict[str, Exercise | Contest] = {
    "07.1": Exercise(
        lambda: _message_that_costs_its_lead("ZBH1"),
        "",
        "both makespans are straight lines from 0.75 to 1",
        (
            Mistake(
                lambda: _message_that_costs_its_lead("Interleaved1F1B"),
                "that is where Interleaved1F1B meets GPipe",
            ),
            Mistake(
                lambda: _message_that_costs_its_lead("ZBH2"), "that is where ZB-H2 meets GPipe"
            ),
            Mistake(lambda: 0.75, "there ZB-H1 is still ahead; they meet between 0.75 and 1"),
            Mistake(lambda: 1.0, "there GPipe is ahead already; they meet between 0.75 and 1"),
        ),
        rel=1e-3,
    ),
    "07.2": Contest("1F1B", 8, times=(2, 1, 1, 2), memory=(4, 3, 2, 2), weight_activation=0.5),
    "08.1": Exercise(
        lambda: _sequences_for(2),
        "sequences",
        "the time grows along a straight line, from b = 1 on",
        (
            Mistake(
                lambda: _sequences_for(2, range(79, 80)),
                "that is the last layer, with the head; a layer from the middle is asked for",
            ),
            Mistake(
                lambda: _sequences_for(2) - 1, "there it takes not quite twice as long; one more"
            ),
            Mistake(
                lambda: _sequences_for(3), "that is three times as long, or twice as long *more*"
            ),
        ),
    ),
    "08.2": Exercise(
        lambda: _cheapest(1250),
        "$",
        "$ per hour / (3600 · tokens/s) · 10^6, for the placements that are fast enough",
        (
            Mistake(_cheapest, "that is the cheapest of all, which is slower than 1,250 tokens/s"),
            Mistake(
                lambda: min(usd for _, usd in _prices("fp16")),
                "that is for weights of two bytes each; take fp8",
            ),
            Mistake(
                lambda: _cheapest(1250) * 3600, "a second has to become an hour: divide by 3600"
            ),
        ),
        rel=2e-3,
    ),
}
