"""Notebook 20, On thirty-two GPUs: copies that share the state, and gradients that are added up in two levels."""

import math
import random
from typing import TYPE_CHECKING

from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import plot_lines
from pipelab.display import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Bytes of a parameter's state in mixed precision with Adam: weight, gradient, optimizer.
_WEIGHT, _GRADIENT, _OPTIMIZER = 2, 4, 12
_MOST = 64  # copies that are drawn


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
    numbers = list(range(1, _MOST + 1))
    lines: dict[str, list[float]] = {
        "kept by each": [_gb(given, copies) for copies in numbers],
        "room": [given.room] * _MOST,
    }
    text, at = "However many copies share, it does not fit", None
    if fewest <= _MOST:
        text = f"It fits from {int(fewest)} copies on"
        at = (fewest, _gb(given, int(fewest)))
    elif not math.isinf(fewest):
        text = f"It takes {int(fewest)} copies until it fits"
    return plot_lines(numbers, lines, text + failure.yours, ("copies", "GB per GPU"), at)


def _look_at_copies(given: Given) -> str:
    whole, _ = _parts(given)
    if _copies(given) == 1:
        return "here one copy fits; can fewer than one be the answer?"
    if math.isinf(_copies(given)):
        return "what is not shared is too much already: the answer is infinite"
    return f"{whole} bytes of a parameter are kept whole here, and the others are shared"


def _two_levels(chance: random.Random) -> Given:
    """Nodes, GPUs in each, GB to add up, and GB/s of each GPU inside its node and between nodes."""
    nodes, each = chance.randint(1, 8), chance.choice((1, 2, 4, 8))
    return Given(
        nodes=nodes,
        each=each,
        gb=chance.randint(1, 40),
        inside=chance.choice((100, 200, 300)),
        between=chance.choice((5, 10, 25, 50)),
    )


def _added(given: Given, share: bool = True) -> float:
    """Seconds: half of a ring inside, a ring of each part between nodes, the other half inside."""
    inside = 2 * (given.each - 1) / given.each * given.gb / given.inside
    part = given.gb / (given.each if share else 1)
    return inside + 2 * (given.nodes - 1) / given.nodes * part / given.between


def _draw_levels(failure: Failure) -> "Figure":
    given = failure.given
    numbers = list(range(1, 9))
    more = [Given(**vars(given) | {"nodes": nodes}) for nodes in numbers]
    gpus = [one.nodes * one.each for one in more]
    lines: dict[str, list[float]] = {
        "two levels": [_added(one) for one in more],
        "one ring over the network": [
            2 * (n - 1) / n * given.gb / given.between if nodes > 1 else _added(one)
            for n, nodes, one in zip(gpus, numbers, more, strict=True)
        ],
    }
    text = f"With {counted(given.nodes, 'node')} it takes {_added(given):.3g} s{failure.yours}"
    return plot_lines(numbers, lines, text, ("nodes", "seconds"), (given.nodes, _added(given)))


def _look_at_levels(given: Given) -> str:
    if given.nodes == 1:
        return "nothing crosses the network here: which part is left?"
    if given.each == 1:
        return "a node has one GPU here: which part is left?"
    return (
        "after the first half each GPU has the sum of one part, and sends only that to other nodes"
    )


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
        signature="two_levels(nodes, each, gb, inside, between)",
        inputs=drawn(202, 200, _two_levels, lambda given: given.nodes * given.each),
        target=_added,
        hint=_look_at_levels,
        picture=_draw_levels,
        half=lambda given, seconds: math.isclose(seconds, _added(given, share=False)),
    ),
}
