"""Notebook 04, A failed heuristic: what it predicts for four L4, and orders of stages."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations, product
from typing import Any, cast

from pipelab.course.exercises import Exercise, Failure, Function, Given, Number, drawn
from pipelab.course.n00 import GPUS, three_sites
from pipelab.course.pictures import Block, BlockRow, colour_of, plot_rows
from pipelab.display import Figure
from pipelab.engine.solving import solve
from pipelab.fields import given
from pipelab.figures.theme import NEUTRAL_LIGHT
from pipelab.problem import Model, Problem

# Exercises


Mix = tuple[int, ...]  # how many A100, L4 and T4


@cache
def _part(mix: Mix, layers: int, max_gpus_per_stage: int) -> Problem:
    """The course's problem with identical layers, on some of its GPUs."""
    problem = three_sites(max_gpus_per_stage)
    model = cast(Model, problem.model)
    identical = replace(model, layers=layers, weight_factors=None, work_factors=None)
    cluster = problem.cluster.with_counts(dict(zip(GPUS, mix, strict=True)))
    return replace(problem, cluster=cluster, model=identical)


@cache
def _twelve_layers(max_gpus_per_stage: int = 4, **options: Any) -> float:
    """What the heuristic predicts for them on four L4."""
    part = _part((0, 4, 0), 12, max_gpus_per_stage)
    return given(solve(part, "type_count", rows="counting", **options).details["predicted"])


def _best_of_orders(x: Given) -> float:
    return min(max(_times(order, dict(x.links))) for order in permutations(x.stages))


def _times(order: Sequence[tuple[str, int]], links: Mapping[tuple[str, str], int]) -> list[int]:
    """Of the stages, and of the links between them."""
    return [ms for _, ms in order] + [links[a, b] for (a, _), (b, _) in pairwise(order)]


def _pipeline(chance: random.Random) -> Given:
    """One to five stages at one to three sites; both directions of a link may differ."""
    sites = "ABC"[: chance.randint(1, 3)]
    stages = [(chance.choice(sites), chance.randint(1, 9)) for _ in range(chance.randint(1, 5))]
    links = {pair: chance.randint(1, 30) for pair in product(sites, repeat=2)}
    return Given(stages=stages, links=links)


def _draw_best_order(failure: Failure) -> Figure:
    """The best order, stage after link after stage, the slowest framed."""
    x = failure.given
    links, best = dict(x.links), _best_of_orders(x)
    order = min(permutations(x.stages), key=lambda order: max(_times(order, links)))
    parts = []
    for before, (site, ms) in zip([None, *order], order, strict=False):
        if before:
            parts.append((f"link {before[0]} → {site}", links[before[0], site], NEUTRAL_LIGHT))
        parts.append((f"stage at {site}", ms, colour_of("ABC".index(site))))
    rows = [
        BlockRow(name, [Block(ms, colour, f"{ms}")], framed=ms == best)
        for name, ms, colour in parts
    ]
    title = f"The best order is {' → '.join(site for site, _ in order)}: its slowest part takes {best} ms"
    return plot_rows(rows, title + failure.yours, "ms", "framed: the slowest part")


def _look_at(x: Given) -> str:
    slowest = max(ms for _, ms in x.stages)
    if len(x.stages) == 1:
        return "one stage has no link"
    if _best_of_orders(x) == slowest:
        return "here an order exists in which no link is slower than the slowest stage"
    return "here a link is the bottleneck in every order; which links does the best order cross?"


EXERCISES: dict[str, Exercise] = {
    "04.1": Number(
        target=_twelve_layers,
        unit="tokens/s",
        hint="with four GPUs in one stage, how many times as fast as one are they predicted to be?",
        half={
            "that is without the factor (2 - 1/k), and happens to be what is possible; use the "
            "published formula": (lambda: _twelve_layers(factor=False)),
            "that is with two GPUs per stage; allow four": (
                lambda: _twelve_layers(max_gpus_per_stage=2)
            ),
        },
    ),
    "04.2": Function(
        signature="best_of_orders(stages, links)",
        inputs=drawn(4, 300, _pipeline, lambda x: (len(x.stages), len(x.links), str(x))),
        target=_best_of_orders,
        hint=_look_at,
        picture=_draw_best_order,
        half=lambda x, answer: answer == max(_times(x.stages, dict(x.links))),
    ),
}
