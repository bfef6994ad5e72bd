"""Exercises of notebooks 07 and 08: when GPipe ends, orders within memory, and weight gradients put off."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.course.exercises.contest import Contest
from pipelab.course.exercises.orders import Orders, missing_or_twice
from pipelab.course.exercises.puzzle import Failure, Puzzle
from pipelab.errors import InvalidSchedule

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.engine.timeline.timeline import Timeline

_PIPELINES, _ROOMS = 200, 150


class Stages(NamedTuple):
    """Times of every stage, the time of a message, and the number of microbatches."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    message: int
    m: int

    def __repr__(self) -> str:
        times = f"forward={list(self.forward)}, backward={list(self.backward)}"
        return f"{times}, message={self.message}, m={self.m}"


class Rooms(NamedTuple):
    """How many microbatches a step has, and how many each rank may hold."""

    m: int
    room: tuple[int, ...]

    def __repr__(self) -> str:
        return f"m={self.m}, room={list(self.room)}"


class Row(NamedTuple):
    """A rank's forwards and input gradients, what a weight gradient keeps, and how much fits."""

    actions: tuple[str, ...]
    share: float
    room: float

    def __repr__(self) -> str:
        return f"row = {' '.join(self.actions)}, share={self.share:g}, room={self.room:g}"


# 07.1: when GPipe ends


@cache
def _pipelines() -> tuple[Stages, ...]:
    chance, found = random.Random(71), set[Stages]()
    while len(found) < _PIPELINES:
        p, m = chance.randint(1, 4), chance.randint(1, 5)
        forward, backward = (tuple(chance.randint(1, 6) for _ in range(p)) for _ in "FB")
        found.add(Stages(forward, backward, chance.choice((0, 0, 1, 3)), m))
    return tuple(sorted(found, key=lambda given: (len(given.forward) + given.m, given)))


def _gpipe(given: Stages) -> "Timeline":
    from pipelab.engine.schedules import schedule
    from pipelab.engine.timeline import StageCosts, simulate

    costs = StageCosts(given.forward, given.backward, 0, comm=given.message)
    return simulate(schedule("GPipe", len(given.forward), given.m), costs)


def _draw_gpipe(failure: Failure) -> "Figure":
    from pipelab.figures.gantt_chart import gantt

    timeline = _gpipe(failure.given)
    text = f"GPipe ends at {timeline.makespan:g}: the black line is what decides it"
    return gantt(timeline, critical_path=True, finding=text)


def _look_at_gpipe(given: Stages) -> str:
    if len(given.forward) == 1:
        return "one rank never waits, so its work is all there is"
    if given.m == 1:
        return "one microbatch goes through all stages and back, with a message at every step"
    if given.message:
        return "messages delay the first microbatch; do they delay the others any further?"
    return "after the first microbatch, how long is it until the next one leaves the slowest stage?"


# 07.2: an order within the memory of every rank


@cache
def _rooms() -> tuple[Rooms, ...]:
    chance, found = random.Random(72), set[Rooms]()
    while len(found) < _ROOMS:
        p = chance.randint(1, 4)
        found.add(Rooms(chance.randint(1, 6), tuple(chance.randint(1, 5) for _ in range(p))))
    return tuple(sorted(found, key=lambda given: (len(given.room) + given.m, given)))


def _within(given: Rooms) -> list[list[str]]:
    """1F1B, with no rank further ahead than the ranks before it have room for; not always the fastest."""
    from pipelab.schedules import one_rank

    rows = []
    for rank in range(len(given.room)):
        ahead = min(len(given.room) - 1 - rank, min(given.room[: rank + 1]) - 1)
        passes = [(rank, i) for i in range(given.m)]
        row = one_rank(passes, passes, min(ahead, given.m))
        rows.append([f"{action.kind}{action.microbatch}" for action in row])
    return rows


def _run(rows: Sequence[Sequence[str]], m: int) -> "Timeline":
    from pipelab.engine.timeline import StageCosts, simulate
    from pipelab.schedules import Schedule

    named = [[f"{rank}{action}" for action in row] for rank, row in enumerate(rows)]
    order = Schedule.of("yours", named, microbatches=m, stage_rank=range(len(rows)))
    return simulate(order, StageCosts(1, 1, 1))


def _off_room(given: Rooms, rows: Any) -> str:
    wanted = [f"{kind}{i}" for kind in "FB" for i in range(given.m)]
    for rank, row in enumerate(rows):
        if why := missing_or_twice(row, wanted, f"rank {rank}"):
            return why
    try:
        timeline = _run(rows, given.m)
    except InvalidSchedule as error:
        return str(error).removeprefix("schedule 'yours' ")
    for rank, held in enumerate(timeline.peak_in_flight):
        if held > given.room[rank]:
            return f"rank {rank} holds {held} microbatches and has room for {given.room[rank]}"
    rule = _run(_within(given), given.m).makespan
    late = f"it ends at {timeline.makespan:g}, and 1F1B with a shorter lead at {rule:g}"
    return late if timeline.makespan > rule else ""


def _orders_of(mine: Callable[..., Any], given: Rooms) -> list[Any]:
    return [mine(rank, given.m, list(given.room)) for rank in range(len(given.room))]


def _draw_room(tried: Failure) -> "Figure":
    """In time if it can be run, and otherwise in the order in which it is listed."""
    from pipelab.course.figures.orders import plot_orders
    from pipelab.figures.gantt_chart import gantt

    given, rows = tried.given, tried.answer or [[]] * len(tried.given.room)
    rows = [row if isinstance(row, list) else [] for row in rows]
    try:
        timeline = _run(rows, given.m)
    except Exception:  # whatever a reader's rows are
        named = {
            f"rank {r}, room {room}": row
            for r, (room, row) in enumerate(zip(given.room, rows, strict=True))
        }
        return plot_orders(named, "Your order cannot be run", "place in the order; no time")
    held = ", ".join(
        f"{n} of {room}" for n, room in zip(timeline.peak_in_flight, given.room, strict=True)
    )
    text = f"Your order ends at {timeline.makespan:g} and holds {held}"
    return gantt(timeline, memory=True, finding=text)


def _look_at_room(given: Rooms) -> str:
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


# 08.1: weight gradients as late as memory allows


@cache
def _rows() -> tuple[Row, ...]:
    chance, found = random.Random(81), set[Row]()
    while len(found) < _ROOMS:
        m, lead = chance.randint(1, 6), chance.randint(0, 3)
        turns = [(i, kind) for i in range(m + lead) for kind in "FI"]
        numbers = [(kind, turn - (lead if kind == "I" else 0)) for turn, kind in turns]
        row = tuple(f"{kind}{i}" for kind, i in numbers if 0 <= i < m)
        share = chance.choice((0, 0.25, 0.5, 0.75, 1))
        found.add(Row(row, share, min(m, lead + 1) + chance.choice((0, 0.25, 0.5, 1, 1.5))))
    return tuple(sorted(found, key=lambda given: (len(given.actions), given)))


def _put_off(given: Row) -> list[str]:
    """Every weight gradient as late as possible: before a forward that would not fit, or at the end."""
    done, waiting, held = list[str](), list[str](), 0.0
    for action in given.actions:
        while action[0] == "F" and held + 1 > given.room:
            done.append(f"W{waiting.pop(0)}")
            held -= given.share
        done.append(action)
        held += 1 if action[0] == "F" else given.share - 1
        waiting += [action[1:]] * (action[0] == "I")
    return done + [f"W{i}" for i in waiting]


def _held(row: Sequence[str], share: float) -> list[float]:
    """What is held after each action."""
    change, held = {"F": 1.0, "I": share - 1, "W": -share}, [0.0]
    for action in row:
        held.append(held[-1] + change[action[0]])
    return held[1:]


def _off_row(given: Row, row: Any) -> str:
    right = _put_off(given)
    if why := missing_or_twice(row, right, "your row"):
        return why
    if [action for action in row if action[0] != "W"] != list(given.actions):
        return "the forwards and input gradients are no longer in the given order"
    for i in (action[1:] for action in right if action[0] == "W"):
        if row.index(f"W{i}") < row.index(f"I{i}"):
            return f"W{i} comes before I{i}"
    most = max(_held(row, given.share))
    if most > given.room:
        return f"it holds {most:g} and has room for {given.room:g}"
    first = next((n for n, (a, b) in enumerate(zip(row, right, strict=True)) if a != b), None)
    return "" if first is None else f"{row[first]} could wait: {right[first]} fits before it"


def _draw_row(tried: Failure) -> "Figure":
    from pipelab.course.figures.orders import plot_orders

    given, row = tried.given, tried.answer
    known = {f"{kind}{action[1:]}" for action in given.actions for kind in "FIW"}
    yours = list(row) if isinstance(row, list) and known.issuperset(row) else []
    name = "your row" if yours else "the given row"
    held = _held(yours or given.actions, given.share)
    text = f"{name.capitalize()} holds {max(held):g} at its peak and has room for {given.room:g}"
    lanes = {name: yours or given.actions}
    return plot_orders(lanes, text, "place in the order; no time", held, given.room)


def _look_at_row(given: Row) -> str:
    if max(_held(given.actions, given.share)) <= given.room:
        return "everything fits here even if all weight gradients come at the end"
    if given.share == 1:
        return "with share 1 only a weight gradient gives memory back"
    return "what is held just before each forward, and how much does a weight gradient give back?"


SCHEDULES: dict[str, Puzzle | Contest] = {
    "07.1": Puzzle(
        "gpipe_end(forward, backward, message, m)",
        _pipelines,
        lambda given: _gpipe(given).makespan,
        _look_at_gpipe,
        apply=lambda mine, x: mine(list(x.forward), list(x.backward), x.message, x.m),
        picture=_draw_gpipe,
    ),
    "07.2": Orders(
        "order(rank, m, room)",
        _rooms,
        _within,
        _look_at_room,
        apply=_orders_of,
        picture=_draw_room,
        broken=_off_room,
    ),
    "08.1": Orders(
        "put_off(row, share, room)",
        _rows,
        _put_off,
        _look_at_row,
        apply=lambda mine, x: mine(list(x.actions), x.share, x.room),
        picture=_draw_row,
        broken=_off_row,
    ),
    "08.2": Contest("1F1B", 8, times=(2, 1, 1, 2), memory=(4, 3, 2, 2), weight_activation=0.5),
}  # fmt: skip
