"""Exercises of notebook 12: an order of GPUs in which 1F1B fits, and layers to recompute."""

import math
import random
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.course.exercises.orders import Orders
from pipelab.course.exercises.puzzle import Failure, Puzzle

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_INPUTS, _GPUS = 200, 150


class Rooms(NamedTuple):
    """For how many microbatches of activations each GPU has room, and how many a step has."""

    rooms: tuple[int, ...]
    m: int

    def __repr__(self) -> str:
        return f"rooms={list(self.rooms)}, m={self.m}"


class Stage(NamedTuple):
    """A stage's layers, what one of them keeps of a microbatch (whole, or its input alone), and more."""

    layers: int
    whole: int
    kept: int
    held: int
    room: int

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items())


# 12.1: which GPU goes first


@cache
def _rooms() -> tuple[Rooms, ...]:
    chance, found = random.Random(121), set[Rooms]()
    while len(found) < _GPUS:
        p = chance.randint(1, 5)
        rooms = tuple(chance.randint(1, p + 1) for _ in range(p))
        found.add(Rooms(rooms, chance.randint(1, 6)))
    return tuple(sorted(found, key=lambda given: (len(given.rooms), given.m, given)))


def _needs(given: Rooms) -> list[int]:
    """What 1F1B holds on each rank."""
    ranks = len(given.rooms)
    return [min(given.m, ranks - rank) for rank in range(ranks)]


def _first_that_fits(given: Rooms) -> list[int] | None:
    """By trying all orders; None where none fits."""
    needs = _needs(given)
    for order in permutations(range(len(given.rooms))):
        if all(given.rooms[g] >= need for g, need in zip(order, needs, strict=True)):
            return list(order)
    return None


def _off_order(given: Rooms, order: Any) -> str:
    right, needs = _first_that_fits(given), _needs(given)
    if order is None:
        return "" if right is None else "it says that no order fits, and one does"
    if not isinstance(order, list) or sorted(order) != list(range(len(needs))):
        return f"it is no order of the GPUs 0 to {len(needs) - 1}"
    for rank, (gpu, need) in enumerate(zip(order, needs, strict=True)):
        if given.rooms[gpu] < need:
            holds = f"rank {rank} holds {need} microbatches, and GPU {gpu} has room for"
            none = "; no order fits here" if right is None else ""
            return f"{holds} {given.rooms[gpu]}{none}"
    return ""


def _draw_order(failure: Failure) -> "Figure":
    from pipelab.course.figures.rows import Block, Row, colour_of, plot_rows

    given, order = failure.given, failure.answer
    right = _first_that_fits(given)
    if not isinstance(order, list) or sorted(order) != list(range(len(given.rooms))):
        order = right or list(range(len(given.rooms)))
    rows = []
    for rank, (gpu, need) in enumerate(zip(order, _needs(given), strict=True)):
        blocks = [Block(1, colour_of(gpu), str(i)) for i in range(need)]
        room = given.rooms[gpu]
        rows.append(Row(f"rank {rank}: GPU {gpu}", blocks, mark=room, wrong=room < need))
    wrong = sum(row.wrong for row in rows)
    text = f"1F1B does not fit on {wrong} of {len(rows)} ranks in this order"
    if not wrong:
        text = "In this order 1F1B fits on every rank"
    elif right is None:
        text = "1F1B fits in no order of these GPUs; this is one of them"
    return plot_rows(rows, text, "microbatches held", "the line is what the GPU has room for")


def _look_at_order(given: Rooms) -> str:
    if _first_that_fits(given) is None:
        return "here no order fits: return None"
    if given.m < len(given.rooms):
        return "a rank never holds more microbatches than there are"
    return "which rank holds most, and which GPU should it be?"


# 12.2: as few layers recomputed as possible


@cache
def _stages() -> tuple[Stage, ...]:
    chance, found = random.Random(122), set[Stage]()
    while len(found) < _INPUTS:
        layers, whole, held = chance.randint(1, 8), chance.randint(2, 9), chance.randint(1, 5)
        kept = chance.randint(0, min(2, whole - 1))
        most = layers * whole * held
        room = chance.randint(max(1, most // 4), most + whole)
        found.add(Stage(layers, whole, kept, held, room))
    return tuple(sorted(found, key=lambda given: (given.layers, given)))


def _need(given: Stage, again: int) -> int:
    """What the stage keeps at its peak with so many layers recomputed."""
    each = (given.layers - again) * given.whole + again * given.kept
    return given.held * each + (given.whole if again else 0)


def _fewest(given: Stage) -> float:
    fitting = (n for n in range(given.layers + 1) if _need(given, n) <= given.room)
    return next(fitting, math.inf)


def _draw_stage(failure: Failure) -> "Figure":
    from pipelab.course.figures.lines import plot_lines

    given: Stage = failure.given
    numbers = list(range(given.layers + 1))
    lines: dict[str, list[float]] = {
        "kept at the peak": [_need(given, n) for n in numbers],
        "room": [given.room] * len(numbers),
    }
    fewest = _fewest(given)
    axes = ("layers recomputed", "memory")
    if math.isinf(fewest):
        text = "Even with all layers recomputed, the stage does not fit"
        return plot_lines(numbers, lines, text + failure.yours, axes)
    text = f"The stage fits with {fewest} of {given.layers} layers recomputed"
    at = (fewest, _need(given, int(fewest)))
    return plot_lines(numbers, lines, text + failure.yours, axes, at)


def _look_at_stage(given: Stage) -> str:
    fewest = _fewest(given)
    if fewest == 0:
        return "everything fits as it is, and nothing is recomputed"
    if math.isinf(fewest):
        return "not even with all layers recomputed does it fit: the answer is infinite"
    return "while one layer is recomputed, all its activations are there once more"


TRAINING: dict[str, Puzzle] = {
    "12.1": Orders(
        "order_of(rooms, m)",
        _rooms,
        _first_that_fits,
        _look_at_order,
        apply=lambda mine, given: mine(list(given.rooms), given.m),
        picture=_draw_order,
        broken=_off_order,
    ),
    "12.2": Puzzle(
        "recomputed_layers(layers, whole, kept, held, room)",
        _stages,
        _fewest,
        _look_at_stage,
        apply=lambda mine, given: mine(*given),
        picture=_draw_stage,
    ),
}
