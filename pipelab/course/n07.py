"""Notebook 07, Pipeline schedules: when GPipe ends, and an order within the memory of every rank."""

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from pipelab.course.exercises import (
    Exercise,
    Failure,
    Function,
    Given,
    drawn,
    gives,
    missing_or_twice,
)
from pipelab.course.pictures import plot_orders
from pipelab.display import Figure
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline import StageCosts, simulate
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidSchedule
from pipelab.figures.gantts import gantt
from pipelab.schedules import Schedule, one_rank

Rows = Sequence[Sequence[str]]  # of each rank

_UNIT = StageCosts(1, 1, 1)


def _stages(chance: random.Random) -> Given:
    """Times of every stage, the time of a message, and the number of microbatches."""
    p, m = chance.randint(1, 4), chance.randint(1, 5)
    forward, backward = ([chance.randint(1, 6) for _ in range(p)] for _ in "FB")
    return Given(forward=forward, backward=backward, message=chance.choice((0, 0, 1, 3)), m=m)


def _gpipe(given: Given) -> "Timeline":
    costs = StageCosts(given.forward, given.backward, 0, comm=given.message)
    return simulate(schedule("GPipe", len(given.forward), given.m), costs)


def _draw_gpipe(failure: Failure) -> Figure:
    timeline = _gpipe(failure.given)
    text = f"GPipe ends at {timeline.makespan:g}: the black line is what decides it"
    return gantt(timeline, critical_path=True, finding=text)


def _look_at_gpipe(given: Given) -> str:
    if len(given.forward) == 1:
        return "one rank never waits, so its work is all there is"
    if given.m == 1:
        return "one microbatch goes through all stages and back, with a message at every step"
    if given.message:
        return "messages delay the first microbatch; do they delay the others any further?"
    return "after the first microbatch, how long is it until the next one leaves the slowest stage?"


def _rooms(chance: random.Random) -> Given:
    """How many microbatches a step has, and how many each rank may hold."""
    p = chance.randint(1, 4)
    return Given(m=chance.randint(1, 6), room=[chance.randint(1, 5) for _ in range(p)])


def rows_within(room: Sequence[int], microbatches: int) -> list[list[str]]:
    """Run 1F1B, with no rank further ahead than the ranks before it have room for; not always the fastest."""
    rows = []
    for rank in range(len(room)):
        ahead = min(len(room) - 1 - rank, min(room[: rank + 1]) - 1)
        passes = [(rank, i) for i in range(microbatches)]
        row = one_rank(passes, passes, min(ahead, microbatches))
        rows.append([f"{action.kind}{action.microbatch}" for action in row])
    return rows


def run_rows(rows: Rows, microbatches: int, costs: StageCosts = _UNIT) -> Timeline:
    """Simulate the actions of every rank, such as "F0", with stage s on rank s."""
    named = [[f"{rank}{action}" for action in row] for rank, row in enumerate(rows)]
    order = Schedule.of("yours", named, microbatches=microbatches, stage_rank=range(len(rows)))
    return simulate(order, costs)


def off_rows(
    rows: Rows, kinds: str, microbatches: int, room: Sequence[float], costs: StageCosts = _UNIT
) -> str:
    """Say why rows lack actions, cannot be run or need more room; "" where they do not."""
    wanted = [f"{kind}{i}" for kind in kinds for i in range(microbatches)]
    for rank, row in enumerate(rows):
        if why := missing_or_twice(row, wanted, f"rank {rank}"):
            return why
    try:
        timeline = run_rows(rows, microbatches, costs)
    except InvalidSchedule as error:
        return str(error).removeprefix("schedule 'yours' ")
    for rank, (held, most) in enumerate(zip(timeline.peak_memory, room, strict=True)):
        if held > most + 1e-9:
            return f"rank {rank} holds {held:g} microbatches and has room for {most}"
    return ""


def off_room(given: Given, rows: Any) -> str:
    """What is wrong with an order of each rank; "" where nothing is."""
    return gives(rows, _why_not(given, rows))


def _why_not(given: Given, rows: Any) -> str:
    if why := off_rows(rows, "FB", given.m, given.room):
        return why
    rule = rows_within(given.room, given.m)
    end, earliest = (run_rows(each, given.m).makespan for each in (rows, rule))
    late = f"it ends at {end:g}, and 1F1B with a shorter lead at {earliest:g}"
    return late if end > earliest else ""


def _stalls_in_its_room(given: Given, rows: Any) -> bool:
    """Whether ranks wait for each other, though none holds more than it has room for."""
    change = {"F": 1, "B": -1}
    held = [max(accumulate(change[action[0]] for action in row)) for row in rows]
    fits = all(n <= room for n, room in zip(held, given.room, strict=True))
    return fits and "deadlock" in _why_not(given, rows)


def _orders_of(mine: Callable[..., Any], given: Given) -> list[Any]:
    return [mine(rank, given.m, list(given.room)) for rank in range(len(given.room))]


def _draw_room(tried: Failure) -> Figure:
    """In time if it can be run, and otherwise in the order in which it is listed."""
    given, rows = tried.given, tried.answer or [[]] * len(tried.given.room)
    rows = [row if isinstance(row, list) else [] for row in rows]
    try:
        timeline = run_rows(rows, given.m)
    except Exception:  # whatever a reader's rows are
        named = {
            f"rank {r}, room {room}": row
            for r, (room, row) in enumerate(zip(given.room, rows, strict=True))
        }
        return plot_orders(named, "Your order cannot be run")
    held = ", ".join(
        f"{n} of {room}" for n, room in zip(timeline.peak_in_flight, given.room, strict=True)
    )
    text = f"Your order ends at {timeline.makespan:g} and holds {held}"
    return gantt(timeline, memory=True, finding=text)


def _look_at_room(given: Given) -> str:
    ranks = len(given.room)
    if ranks == 1:
        return "one rank has nobody to wait for: a forward, then its backward"
    for rank in range(1, ranks):
        before = min(range(rank), key=lambda r: given.room[r])
        if given.room[before] < given.room[rank]:
            return (
                f"rank {before} comes before rank {rank} and has less room: how many forwards can it "
                "send ahead?"
            )
    return "how far ahead does 1F1B run, and how much of that is there room for?"


EXERCISES: dict[str, Exercise] = {
    "07.1": Function(
        signature="gpipe_end(forward, backward, message, m)",
        inputs=drawn(71, 200, _stages, lambda given: len(given.forward) + given.m),
        target=lambda given: _gpipe(given).makespan,
        hint=_look_at_gpipe,
        picture=_draw_gpipe,
        half=lambda given, _: given.message > 0,
    ),
    "07.2": Function(
        signature="order(rank, m, room)",
        inputs=drawn(72, 150, _rooms, lambda given: len(given.room) + given.m),
        target=lambda given: rows_within(given.room, given.m),
        off=off_room,
        hint=_look_at_room,
        call=_orders_of,
        picture=_draw_room,
        half=_stalls_in_its_room,
    ),
}
