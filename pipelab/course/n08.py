"""Notebook 08, Zero bubble: weight gradients put off, and a schedule to beat."""

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from pipelab.course.exercises import (
    Construction,
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
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.timeline import StageCosts, simulate
from pipelab.engine.timeline.formulas import lower_bound
from pipelab.errors import InvalidSchedule, shown
from pipelab.files.bundled_folders import data_dir
from pipelab.schedules import Schedule

# Numbers that papers print


class PublishedBubble(NamedTuple):
    """One setting of Zero Bubble's table 5, with its profile from table 9."""

    model: str
    ranks: int
    microbatches: int
    chunks: int  # of its interleaved column
    costs: StageCosts  # of a whole rank, in ms
    # printed bubble rates by schedule: 1F1B, 1F1B-I, ZB-H1, ZB-H2, ZB-1p, ZB-2p
    rates: dict[str, float]


@cache
def published_bubbles() -> tuple[PublishedBubble, ...]:
    """The twelve settings of table 5 in *Zero Bubble Pipeline Parallelism* (arXiv 2401.10241v1).

    Returns
    -------
    tuple of PublishedBubble
        Of each setting: model, ranks, microbatches, chunks, the profile of table 9 as `StageCosts`
        in ms, and the printed bubble rates by schedule.

    References
    ----------
    P. Qi et al., *Zero Bubble Pipeline Parallelism*, arXiv 2401.10241v1, tables 5 and 9;
    `notebooks/data.md` says more.

    Examples
    --------
    >>> first = published_bubbles()[0]
    >>> first.model, first.ranks, first.microbatches, first.rates["ZB-H1"]
    ('1.5B', 8, 24, 0.1585)
    """
    table = json.loads((data_dir() / "zb_table5.json").read_text(encoding="utf-8"))
    return tuple(
        PublishedBubble(
            row["model"],
            row["p"],
            row["m"],
            row["v_1f1b_i"],
            StageCosts(row["TF"], row["TB"], row["TW"], row["Tcomm"], unit="ms"),
            dict(zip(table["columns"], row["bubble"], strict=True)),
        )
        for row in table["rows"]
    )


# Exercises


def _row(chance: random.Random) -> Given:
    """A rank's forwards and input gradients, what a weight gradient keeps, and how much fits."""
    m, lead = chance.randint(1, 6), chance.randint(0, 3)
    turns = [(i, kind) for i in range(m + lead) for kind in "FI"]
    numbers = [(kind, turn - (lead if kind == "I" else 0)) for turn, kind in turns]
    row = [f"{kind}{i}" for kind, i in numbers if 0 <= i < m]
    share = chance.choice((0, 0.25, 0.5, 0.75, 1))
    room = min(m, lead + 1) + chance.choice((0, 0.25, 0.5, 1, 1.5))
    return Given(row=row, share=share, room=room)


def _put_off(given: Given) -> list[str]:
    """Every weight gradient as late as possible: before a forward that would not fit, or at the end."""
    done, waiting, held = list[str](), list[str](), 0.0
    for action in given.row:
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


def _off_row(given: Given, row: Any) -> str:
    return gives(row, _why_not(given, row))


def _why_not(given: Given, row: Any) -> str:
    right = _put_off(given)
    if why := missing_or_twice(row, right, "your row"):
        return why
    if [action for action in row if action[0] != "W"] != given.row:
        return "the forwards and input gradients are no longer in the given order"
    for i in (action[1:] for action in right if action[0] == "W"):
        if row.index(f"W{i}") < row.index(f"I{i}"):
            return f"W{i} comes before I{i}"
    most = max(_held(row, given.share))
    if most > given.room:
        return f"it holds {most:g} and has room for {given.room:g}"
    first = next((n for n, (a, b) in enumerate(zip(row, right, strict=True)) if a != b), None)
    return "" if first is None else f"{row[first]} could wait: {right[first]} fits before it"


def _draw_row(tried: Failure) -> Figure:
    given, row = tried.given, tried.answer
    known = {f"{kind}{action[1:]}" for action in given.row for kind in "FIW"}
    yours = list(row) if isinstance(row, list) and known.issuperset(row) else []
    name = "your row" if yours else "the given row"
    held = _held(yours or given.row, given.share)
    text = f"{name.capitalize()} holds {max(held):g} at its peak and has room for {given.room:g}"
    lanes = {name: yours or given.row}
    return plot_orders(lanes, text, held, given.room)


def _look_at_row(given: Given) -> str:
    if max(_held(given.row, given.share)) <= given.room:
        return "everything fits here even if all weight gradients come at the end"
    if given.share == 1:
        return "with share 1 only a weight gradient gives memory back"
    return "what is held just before each forward, and how much does a weight gradient give back?"


# The schedule to beat: 1F1B on stages of these times (F = I = W), with so much memory on every rank.
_TIMES, MEMORY, _MICROBATCHES = (2, 1, 1, 2), (4, 3, 2, 2), 8
COSTS = StageCosts(_TIMES, _TIMES, _TIMES, weight_activation=0.5)


def _beats_1f1b(mine: object) -> tuple[float, str]:
    """Give 1 point to a schedule that fits and ends before 1F1B, half a point to one that only fits."""
    ranks = len(_TIMES)
    if not isinstance(mine, Schedule):
        made = "a schedule, as pl.Schedule.of('mine', rows) makes it"
        return 0, f"expected {made}; yours is {shown(mine)}"
    asked = mine.microbatches == _MICROBATCHES and mine.stage_rank == tuple(range(ranks))
    if not asked or columns_of(mine).forward_only:
        steps = f"{_MICROBATCHES} microbatches forward and back"
        return 0, f"expected {steps}, stage s on rank s of {ranks}"
    try:
        timeline = simulate(mine, COSTS)
    except InvalidSchedule as error:
        return 0, str(error)
    for rank, (held, most) in enumerate(zip(timeline.peak_memory, MEMORY, strict=True)):
        if held > most + 1e-9:
            return 0, f"rank {rank} holds {held:g} at its peak and has room for {most:g}"
    end = timeline.makespan
    baseline = simulate(schedule("1F1B", ranks, _MICROBATCHES), COSTS).makespan
    if end >= baseline - 1e-9:
        last = ranks - 1
        hint = f"{_SPLIT}, and let rank {last}, which all others wait for, put W off"
        return 0.5, f"makespan {end:g}, and 1F1B takes {baseline:g}. Hint: {hint}"
    bound = lower_bound(COSTS, _MICROBATCHES, ranks, max_in_flight=[int(most) for most in MEMORY])
    best = "no order takes less"
    if end > bound + 1e-9:
        best = f"no order takes less than {bound:g}; how near can you get?"
    return 1, f"makespan {end:g} against {baseline:g}; {best}"


_SPLIT = "split backwards (I, then W)"

EXERCISES: dict[str, Exercise] = {
    "08.1": Function(
        signature="put_off(row, share, room)",
        inputs=drawn(81, 150, _row, lambda given: len(given.row)),
        target=_put_off,
        off=_off_row,
        hint=_look_at_row,
        picture=_draw_row,
        half=lambda given, row: "could wait" in _why_not(given, row),
    ),
    "08.2": Construction(
        asks="a schedule",
        grade=_beats_1f1b,
        advice=(
            _SPLIT,
            "which rank do all others wait for, and which of its actions does nobody wait for?",
            "what is held at each moment? A W that is put off holds memory, so it fits only so often",
        ),
    ),
}
