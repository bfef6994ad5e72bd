"""The lab *A schedule of your own*: unequal stages, limited memory, and the proven optimum to compare with."""

import random
from functools import cache
from typing import Any, cast

from pipelab.course.exercises import Exercise, Given
from pipelab.course.n07 import Rows, off_rows, rows_within, run_rows
from pipelab.course.pictures import plot_orders
from pipelab.course.scored_labs import Lab, Try, problems
from pipelab.display import Figure
from pipelab.engine.best_schedules import BestSchedule, best_schedule
from pipelab.engine.timeline import StageCosts
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import shown
from pipelab.figures.gantts import plot_timelines

_SECONDS = 20.0  # for a proof; most take a tenth of a second
_WORTH_IT = 0.96  # a rule that is hardly longer takes at most this share of the baseline


def _stages(chance: random.Random) -> Given | None:
    """Draw the times of every stage, what is kept until W, and how much memory each rank has."""
    p = chance.randint(3, 5)
    forward, back, weight = ([chance.randint(2, 6) for _ in range(p)] for _ in "FIW")
    room = [max(1, p - rank + chance.choice((-1, 0, 0, 1))) for rank in range(p)]
    given = Given(
        forward=forward,
        back=back,
        weight=weight,
        kept=chance.choice((0.5, 0.75, 1)),
        room=room,
        microbatches=chance.randint(6, 10),
    )
    end = _run(given, _first_ready(given)).makespan
    return given if end <= _WORTH_IT * _baseline(given) else None


def _costs(given: Given) -> StageCosts:
    return StageCosts(given.forward, given.back, given.weight, weight_activation=given.kept)


def _run(given: Given, rows: Rows) -> Timeline:
    return run_rows(rows, given.microbatches, _costs(given))


@cache
def _baseline(given: Given) -> float:
    """1F1B with a lead that fits, and every weight gradient at once."""
    rows = [
        [part for action in row for part in _halves(action)]
        for row in rows_within(given.room, given.microbatches)
    ]
    return _run(given, rows).makespan


def _halves(action: str) -> list[str]:
    return [action] if action[0] == "F" else [f"I{action[1:]}", f"W{action[1:]}"]


def _first_ready(given: Given) -> list[list[str]]:
    """Let the action that can start first go first: of several I, then F, then W.

    It shows, without any solver, that there is something to gain over the baseline.
    """
    ranks = range(len(given.forward))
    takes = {"I": given.back, "F": given.forward, "W": given.weight}
    done: dict[tuple[str, int, int], int] = {}
    rows: list[list[str]] = [[] for _ in ranks]
    clock = [0] * len(ranks)

    def count(kind: str, rank: int) -> int:
        return sum(action[0] == kind for action in rows[rank])

    def ready(kind: str, rank: int) -> int | None:
        """When the next action of a kind can start; None where it is not known yet, or does not fit."""
        i = count(kind, rank)
        if kind == "F":
            back, weight = count("I", rank), count("W", rank)
            if i - back + given.kept * (back - weight) + 1 > given.room[rank]:
                return None
            return 0 if rank == 0 else done.get(("F", rank - 1, i))
        if kind == "I":
            if i == count("F", rank):
                return None
            return done.get(("F", rank, i) if rank == ranks[-1] else ("I", rank + 1, i))
        return done.get(("I", rank, i))

    for _ in range(3 * given.microbatches * len(ranks)):
        start, _, rank, kind = min(
            (max(at, clock[rank]), urgency, rank, kind)
            for rank in reversed(ranks)
            for urgency, kind in enumerate(takes)
            if count(kind, rank) < given.microbatches and (at := ready(kind, rank)) is not None
        )
        i = count(kind, rank)
        rows[rank].append(f"{kind}{i}")
        clock[rank] = done[kind, rank, i] = start + takes[kind][rank]
    return rows


@cache
def _proven(given: Given) -> BestSchedule:
    return best_schedule(_costs(given), given.microbatches, memory=given.room, time_limit=_SECONDS)


def _best(given: Given) -> float:
    """The least makespan; where its proof takes too long, what no schedule is below."""
    return cast(float, _proven(given).bound)


def _off(given: Given, rows: Any) -> str:
    ranks = len(given.forward)
    if len(rows) != ranks or not isinstance(rows, list):
        return f"expected a list of {ranks} rows, one per rank; yours gives {shown(rows)}"
    return off_rows(rows, "FIW", given.microbatches, given.room, _costs(given))


def _draw(tried: Try) -> Figure:
    """Your schedule above the proven one; where yours cannot be run, its rows as they are listed."""
    given, rows = tried.given, tried.answer
    if tried.wrong:
        listed = rows if isinstance(rows, list) else []
        named = {f"rank {r}": row for r, row in enumerate(listed) if isinstance(row, list)}
        return plot_orders(named or {"yours": []}, "Your order cannot be used")
    text = f"Yours ends at {tried.value:g}, the baseline at {tried.baseline:g}, and {tried.best:g} is possible"
    best = cast(Timeline, _proven(given).timeline)
    return plot_timelines({"yours": _run(given, rows), "proven": best}, finding=text)


def _look_at(given: Given) -> str:
    total = [sum(times) for times in zip(given.forward, given.back, given.weight, strict=True)]
    busiest = max(range(len(total)), key=total.__getitem__)
    return (
        f"rank {busiest} has the most work, {total[busiest] * given.microbatches}: when does it wait, and "
        "what could it do then?"
    )


EXERCISES: dict[str, Exercise] = {
    "lab_schedule": Lab(
        signature="my_schedule(forward, back, weight, kept, room, microbatches)",
        inputs=problems(71, 12, _stages),
        off=_off,
        expects="a list of rows, one per rank, each a list of actions such as 'F0'",
        value=lambda given, rows: _run(given, rows).makespan,
        baseline=_baseline,
        best=_best,
        baseline_is="1F1B with a lead that fits, W at once",
        best_is="the proven optimum",
        measure="makespan",
        size=lambda given: f"{len(given.forward)} ranks, {given.microbatches} microbatches",
        hint=_look_at,
        advice=(
            "simulate: keep a clock for every rank, and let the rank that can start first choose its next action",
            "which of the actions that are ready should go first? Try I before F before W, then another order",
            "a W that waits keeps memory; when must it run so that the next F fits?",
            "several rules are better than one: try all, and return the order that ends first",
            "change the best order a little (two neighbours in a row, the lead of a rank), and keep what ends sooner",
        ),
        drawn=_draw,
    ),
}
