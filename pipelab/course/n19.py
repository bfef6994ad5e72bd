"""Notebook 19, On thirty-two GPUs: copies that share the state, and what they send for it."""

import math
import random
from typing import TYPE_CHECKING

from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import plot_what_fits

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Bytes of a parameter's state in mixed precision with Adam: weight, gradient, optimizer.
_WEIGHT, _GRADIENT, _OPTIMIZER = 2, 4, 12
_MOST = 64  # copies that are drawn
_MICROBATCHES = 16  # at most


def _shared(chance: random.Random) -> Given:
    """Parameters in 10^9, GB of activations, GB of room, and a stage of ZeRO from 0 to 3."""
    parameters, kept = chance.randint(1, 20), chance.randint(0, 20)
    return Given(
        parameters=parameters,
        kept=kept,
        room=chance.randint(2, 20) * 10,
        stage=chance.randint(0, 3),
    )


def _parts(given: Given) -> tuple[int, int]:
    """Bytes per parameter that every copy keeps whole, and those that all copies share."""
    each = (_OPTIMIZER, _GRADIENT, _WEIGHT)
    return sum(each[given.stage :]), sum(each[: given.stage])


def _gb(given: Given, copies: int) -> float:
    whole, shared = _parts(given)
    return given.kept + given.parameters * (whole + shared / copies)


def _copies(given: Given) -> float:
    """The fewest copies with which it fits; infinite if it never does."""
    whole, shared = _parts(given)
    spare = given.room - given.kept - whole * given.parameters
    if spare < 0 or (spare == 0 and shared):
        return math.inf
    return max(1, math.ceil(shared * given.parameters / spare)) if shared else 1


def _draw_copies(failure: Failure) -> "Figure":
    given, fewest = failure.given, _copies(failure.given)
    text = "However many copies share, it does not fit"
    if not math.isinf(fewest):
        text = f"It fits from {int(fewest)} copies on"
    kept = {copies: _gb(given, copies) for copies in range(1, _MOST + 1)}
    axes = ("copies", "GB kept by each GPU")
    return plot_what_fits(kept, given.room, fewest, text + failure.yours, axes)


def _look_at_copies(given: Given) -> str:
    whole, _ = _parts(given)
    if _copies(given) == 1:
        return "here one copy fits; can fewer than one be the answer?"
    if math.isinf(_copies(given)):
        return "what is not shared is too much already: the answer is infinite"
    return f"{whole} bytes of a parameter are kept whole here, and the others are shared"


def _zero_3(chance: random.Random) -> Given:
    """Nodes, GPUs in each, GB of weights, microbatches, and GB/s of each GPU inside its node and between nodes."""
    nodes, each = chance.randint(1, 8), chance.choice((1, 2, 4, 8))
    return Given(
        nodes=nodes,
        each=each,
        weights=chance.randint(1, 40),
        microbatches=chance.randint(1, _MICROBATCHES),
        inside=chance.choice((100, 200, 300)),
        between=chance.choice((5, 10, 25, 50)),
    )


def _sent(given: Given, collected: int = 2) -> float:
    """Seconds in which weights are collected so often for a microbatch, and gradients added up."""
    part = given.weights / given.each
    inside = (given.weights - part) / given.inside
    half = inside + (part - part / given.nodes) / given.between
    return given.microbatches * (collected + 2) * half


def _look_at_sent(given: Given) -> str:
    if given.nodes == 1:
        return "nothing crosses the network here: which part is left?"
    if given.each == 1:
        return "a node has one GPU here: which part is left?"
    return "a microbatch takes three halves of an all-reduce: weights twice, gradients once"


EXERCISES: dict[str, Exercise] = {
    "19.1": Function(
        signature="copies_needed(parameters, kept, room, stage)",
        inputs=drawn(201, 200, _shared, lambda given: given.parameters),
        target=_copies,
        hint=_look_at_copies,
        picture=_draw_copies,
        half=lambda given, _: math.isinf(_copies(given)),
    ),
    "19.2": Function(
        signature="zero_3(nodes, each, weights, microbatches, inside, between)",
        inputs=drawn(
            202, 200, _zero_3, lambda given: given.nodes * given.each * given.microbatches
        ),
        target=_sent,
        hint=_look_at_sent,
        half=lambda given, seconds: math.isclose(seconds, _sent(given, collected=1)),
    ),
}
