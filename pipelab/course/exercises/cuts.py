"""Exercises of notebook 00: cuts of the course's own problem, Llama-3-70B on three sites."""

import random
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Failure, Puzzle
from pipelab.fields import given

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.problem import Problem

Cuts = tuple[tuple[int, int], ...]  # (number of layers, GPU id), in pipeline order

A100, L4, T4 = (0, 1, 2), (3, 4, 5, 6), (7, 8, 9, 10)
_INPUTS = 200


@cache
def _problem() -> "Problem":
    from pipelab.course.main_problem import three_sites

    return three_sites()


def _rate(cuts: Cuts) -> float:
    """In tokens/s; 0 where a GPU's memory is too small. GPUs without a layer are no stages."""
    from pipelab.errors import InvalidPlacement
    from pipelab.evaluation import evaluate
    from pipelab.placement import Placement

    placement = Placement.of([(layers, (gpu,)) for layers, gpu in cuts if layers])
    try:
        return evaluate(_problem(), placement).throughput
    except InvalidPlacement:
        return 0.0


def _by_speed(order: Sequence[int], power: int = -1) -> float:
    """Layers in proportion to the time per layer, to this power."""
    from pipelab.splits import split_proportional

    problem = _problem()
    ms = problem.costs.ms_per_layer
    weights = [ms[problem.cluster.gpus[gpu].type] ** power for gpu in order]
    parts = split_proportional(problem.model.layers, weights)
    return _rate(tuple((len(part), gpu) for part, gpu in zip(parts, order, strict=True)))


def _solved(method: str, order: Sequence[int] | None = None) -> float:
    from pipelab.solving import solve

    options: dict[str, Any] = {} if order is None else {"gpus": order}
    return given(solve(_problem(), method, **options).throughput)


@cache
def _some_cuts() -> tuple[Cuts, ...]:
    """Cuts of all layers, few GPUs first: some do not fit, in some a GPU holds nothing."""
    chance, found = random.Random(0), set[Cuts]()
    while len(found) < _INPUTS:
        sites = chance.choice([(L4, A100, T4), tuple(chance.sample((A100, L4, T4), 3))])
        gpus = [gpu for site in sites for gpu in chance.sample(site, chance.randint(1, len(site)))]
        # These fit, even with the embedding or the head; two layers more often do not.
        more = chance.choice((0, 0, 2))
        most = [more + (20 if gpu in A100 else 11 if gpu in L4 else 6) for gpu in gpus]
        most = [chance.choice((0, top, top, top)) for top in most]
        if sum(most) >= _problem().model.layers:
            found.add(tuple(zip(_dealt(most, chance), gpus, strict=True)))
    return tuple(sorted(found, key=lambda cuts: (len(cuts), cuts)))


def _dealt(most: Sequence[int], chance: random.Random) -> list[int]:
    """All layers of the model dealt one by one, no GPU above its `most`."""
    layers = [0] * len(most)
    while sum(layers) < _problem().model.layers:
        place = chance.randrange(len(most))
        layers[place] += layers[place] < most[place]
    return layers


def _look_at(cuts: Cuts) -> str:
    """What a wrong answer on these cuts has probably missed."""
    if not _rate(cuts):
        return "does every GPU's memory hold its layers, and what is reserved?"
    if any(layers == 0 for layers, _ in cuts):
        return (
            "a GPU without layers is no stage; its neighbours are linked directly "
            "(if yours is 0: which layers did you weigh?)"
        )
    return "the slowest stage or link sets the pace; which one is it here, and what does it take?"


def _drawn(failure: Failure) -> "Figure":
    from pipelab.course.figures.cut import plot_cut
    from pipelab.placement import Placement

    return plot_cut(_problem(), Placement.of([(n, (gpu,)) for n, gpu in failure.given if n]))


CUTS: dict[str, Exercise | Puzzle] = {
    "00.1": Exercise(
        lambda: _by_speed((*T4, *A100, *L4)),
        "tokens/s",
        "how fast is a GPU that takes so many milliseconds per layer? Is each part on its GPU, in that order?",
        (
            Mistake(
                lambda: _by_speed((*A100, *L4, *T4)),
                "that sends over the link from the L4s to the T4s; put the A100s between them",
            ),
            Mistake(
                lambda: _solved("proportional", (*T4, *A100, *L4)),
                "that is by memory; the weights asked for are speeds",
            ),
            Mistake(
                lambda: _solved("auto"),
                "that is the proven optimum; the rule comes near, but not to it",
            ),
        ),
    ),
    "00.2": Puzzle("rate(cuts)", _some_cuts, _rate, _look_at, picture=_drawn),
}
