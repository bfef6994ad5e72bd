"""Notebook 16, Training placement: GPUs in an order in which 1F1B fits, and how long a proof takes."""

import math
import operator
import random
from collections.abc import Callable
from itertools import permutations
from typing import Any

from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn, gives
from pipelab.course.pictures import Block, BlockRow, colour_of, plot_rows
from pipelab.display import Figure

# Exercises


def _rooms(chance: random.Random) -> Given:
    """For how many microbatches of activations each GPU has room, and how many a step has."""
    p = chance.randint(1, 5)
    rooms = [chance.randint(1, p + 1) for _ in range(p)]
    return Given(rooms=rooms, m=chance.randint(1, 6))


def held_by_1f1b(given: Given) -> list[int]:
    """What 1F1B holds on each rank."""
    ranks = len(given.rooms)
    return [min(given.m, ranks - rank) for rank in range(ranks)]


def _first_that_fits(given: Given) -> list[int] | None:
    """By trying all orders; None where none fits."""
    needs = held_by_1f1b(given)
    for order in permutations(range(len(given.rooms))):
        if all(given.rooms[g] >= need for g, need in zip(order, needs, strict=True)):
            return list(order)
    return None


def _off_order(given: Given, order: Any) -> str:
    return gives(order, _why_not(given, order))


def _why_not(given: Given, order: Any) -> str:
    right, needs = _first_that_fits(given), held_by_1f1b(given)
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


def _draw_order(failure: Failure) -> Figure:
    given, order = failure.given, failure.answer
    right = _first_that_fits(given)
    if not isinstance(order, list) or sorted(order) != list(range(len(given.rooms))):
        order = right or list(range(len(given.rooms)))
    rows = []
    for rank, (gpu, need) in enumerate(zip(order, held_by_1f1b(given), strict=True)):
        blocks = [Block(1, colour_of(gpu), str(i)) for i in range(need)]
        room = given.rooms[gpu]
        rows.append(BlockRow(f"rank {rank}: GPU {gpu}", blocks, mark=room, wrong=room < need))
    wrong = sum(row.wrong for row in rows)
    text = f"1F1B does not fit on {wrong} of {len(rows)} ranks in this order"
    if not wrong:
        text = "In this order 1F1B fits on every rank"
    elif right is None:
        text = "1F1B fits in no order of these GPUs; this is one of them"
    return plot_rows(rows, text, "microbatches held", "the line is what the GPU has room for")


def _look_at_order(given: Given) -> str:
    if _first_that_fits(given) is None:
        return "here no order fits: return None"
    if given.m < len(given.rooms):
        return "a rank never holds more microbatches than there are"
    return "which rank holds most, and which GPU should it be?"


def _placements(chance: random.Random) -> Given:
    """Placements with a lower bound of the step, and the step that a simulation finds; some meet their bound."""
    n = chance.randint(1, 7)
    bounds = [chance.randint(10, 40) for _ in range(n)]
    steps = [bound + chance.choice((0, 0, 1, 3, 6, 12)) for bound in bounds]
    return Given(bounds=bounds, steps=steps)


def _simulated(given: Given, ends: Callable[[float, float], bool] = operator.ge) -> int:
    """How many until no bound is below the best step found, so until a bound `ends` the proof with that step."""
    best, number = math.inf, 0
    for bound, step in sorted(zip(given.bounds, given.steps, strict=True)):
        if ends(bound, best):
            break
        best, number = min(best, step), number + 1
    return number


def _until_met(given: Given) -> int:
    """As `_simulated`, but it goes on where a bound only equals the best step."""
    return _simulated(given, operator.gt)


def _look_at_placements(given: Given) -> str:
    if len(given.bounds) == 1:
        return "before the first simulation nothing is known"
    if given.bounds != sorted(given.bounds):
        return "in which order should placements be simulated, so that the first bound ends it?"
    if _until_met(given) != _simulated(given):
        return "here a bound equals the best step found; can that placement be shorter?"
    return "compare each bound with the best of all steps so far, not with its own"


EXERCISES: dict[str, Exercise] = {
    "16.1": Function(
        signature="order_of(rooms, m)",
        inputs=drawn(121, 150, _rooms, lambda given: (len(given.rooms), given.m)),
        target=_first_that_fits,
        off=_off_order,
        hint=_look_at_order,
        picture=_draw_order,
        half=lambda given, _: _first_that_fits(given) is None or given.m < len(given.rooms),
    ),
    "16.2": Function(
        signature="simulations(bounds, steps)",
        inputs=drawn(182, 200, _placements, lambda given: len(given.bounds)),
        target=_simulated,
        hint=_look_at_placements,
        half=lambda given, number: number == _until_met(given),
    ),
}
