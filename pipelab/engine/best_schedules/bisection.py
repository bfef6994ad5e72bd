"""The shortest schedule by bisection: is there one of at most so many units?

That is decided much sooner than a schedule is shortened step by step: every action then has to lie
between what comes before it and what must follow, and mostly one of the two is tight. The first
length asked for is the bound known by formula, which most often is reached. Where CP-SAT does not
decide in time, it minimises for what time is left.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

from pipelab.engine.best_schedules.program import Action, Answer, Program
from pipelab.engine.best_schedules.question import Question
from pipelab.engine.best_schedules.repeated_steps import value_of
from pipelab.engine.best_schedules.whole_numbers import in_units
from pipelab.engine.deadline import Deadline
from pipelab.engine.timeline.simulation import simulate
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidSchedule
from pipelab.schedules import Schedule

_FIRST_S = 30.0  # for the bound by formula, and at most a third of the time left
_STEP_S = 5.0  # for any other length, and at most a sixth
_UNDECIDED = 2  # lengths, before the rest of the time goes to minimising


class Progress(NamedTuple):
    """What is known at one moment: the shortest schedule so far, and what none is shorter than."""

    seconds: float
    value: float
    bound: float


class Found(NamedTuple):
    """What the search ended with: a schedule at the true costs, and the bound in units."""

    timeline: Timeline
    bound: int
    stopped_by: str | None


@dataclass
class Bisection:
    """One search.

    Attributes
    ----------
    question : Question
        With the true costs.
    objective : {"makespan", "span"}
    unit : Fraction
        How many units make 1 in the costs.
    workers : int
        Threads of CP-SAT.
    deadline : Deadline
    on_progress : function of Progress, optional
    """

    question: Question
    objective: str
    unit: Any
    workers: int
    deadline: Deadline
    on_progress: Callable[[Progress], None] | None

    def run(self, best: Timeline, least: Callable[[Question], float]) -> Found:
        """Shorten `best` until nothing is shorter, or time has run out.

        Parameters
        ----------
        best : Timeline
            At the true costs.
        least : function of Question
            What no schedule takes less than, by formula.
        """
        self._whole = self.question.with_costs(self._in_units())
        self._best = best
        self._high = ceil(self._value(best.schedule))
        self._low = min(self._high, int(least(self._whole)))
        self._stopped_by: str | None = None
        if not self._decided():
            self._minimise()
        self._tell()
        return Found(self._best, self._low, self._stopped_by)

    def _decided(self) -> bool:
        """Ask length by length; False where some were not decided."""
        length = lowest = formula = self._low  # `lowest`: below, nothing is asked any more
        undecided = 0
        while lowest < self._high and undecided < _UNDECIDED and not self.deadline.reason:
            first = length == formula
            share = _FIRST_S if first else _STEP_S
            step = self.deadline.within(min(share, self.deadline.left / (3 if first else 6)))
            answer = self._program(length, length).solve(step, self.workers, lambda *_: None)
            if answer.bound > length:
                self._low = max(self._low, answer.bound)
                lowest = max(lowest, answer.bound)
            elif answer.starts is None or not self._take(answer):
                undecided += 1
                lowest = length + 1
            length = (lowest + self._high) // 2
        return self._low >= self._high

    def _minimise(self) -> None:
        self._stopped_by = self.deadline.reason
        if self._stopped_by:
            return
        program = self._program(self._low, self._high)
        if self.objective == "makespan":
            program.hint(_starts(simulate(self._best.schedule, self._whole.costs)))
        answer = program.solve(self.deadline, self.workers, self._progress)
        if answer.bound > self._high:
            raise RuntimeError(
                "CP-SAT calls a program infeasible that has a known solution; a mistake in pipelab"
            )
        self._low, self._stopped_by = max(self._low, answer.bound), answer.stopped_by
        if answer.starts is not None:
            self._take(answer)

    def _program(self, low: int, high: int) -> Program:
        return Program(self._whole, self.objective == "span", low, high)

    def _take(self, answer: Answer) -> bool:
        """Keep a schedule if it is shorter than the best; False where it is not."""
        try:
            order = in_order(self._whole, answer.starts or {})
            timeline = simulate(order, self.question.costs)
        except (
            InvalidSchedule
        ):  # actions of no length at one moment, put in an order that cannot run
            return False
        value = ceil(self._value(order))
        if value >= self._high or not self.question.keeps(timeline):
            return False
        self._high, self._best = value, timeline
        self._tell()
        return True

    def _tell(self) -> None:
        self._progress(self._high, self._low)

    def _progress(self, value: int, bound: int) -> None:
        if self.on_progress is not None:
            best, least = float(value / self.unit), float(bound / self.unit)
            self.on_progress(Progress(self.deadline.spent, best, least))

    def _value(self, schedule: Schedule) -> float:
        """Of a schedule, in units."""
        return value_of(simulate(schedule, self._whole.costs), self.objective)

    def _in_units(self) -> Any:
        forward, back, weight, comm = (
            tuple(float(in_units(time, self.unit)) for time in times.tolist())
            for times in (
                *(self.question.length[kind] for kind in "FIW"),
                self.question.table["comm"],
            )
        )
        return replace(
            self.question.costs,
            forward=forward,
            backward_input=back,
            backward_weight=weight,
            comm=comm,
        )


def _starts(timeline: Timeline) -> dict[Action, int]:
    """When each action starts, the k-th of each kind and rank being microbatch k's."""
    columns = timeline.columns
    starts: dict[Action, int] = {}
    counts: dict[tuple[int, str], int] = {}
    for action, rank, begin in zip(
        (action for row in columns.schedule.actions for action in row),
        columns.rank.tolist(),
        timeline.start.tolist(),
        strict=True,
    ):
        k = counts.get((rank, action.kind), 0)
        counts[rank, action.kind] = k + 1
        starts[rank, action.kind, k] = int(begin)
    return starts


def in_order(question: Question, starts: dict[Action, int]) -> Schedule:
    """Each rank's actions by their start. Of those of no length, what frees memory goes first."""
    rows = []
    for rank in range(question.ranks):
        mine = [
            (begin, begin + int(question.length[kind][rank]), "WIBF".index(kind), k, kind)
            for (at, kind, k), begin in starts.items()
            if at == rank
        ]
        rows.append(_runnable([(kind, k) for *_, k, kind in sorted(mine)], question.kinds))
    return question.schedule("best", rows)


def _runnable(row: list[tuple[str, int]], kinds: tuple[str, ...]) -> list[tuple[str, int]]:
    """The same order, but that no action comes before what it works on."""
    done = dict.fromkeys(kinds, 0)
    waiting, ordered = list(row), []
    while waiting:
        ready = (
            action
            for action in waiting
            if (place := kinds.index(action[0])) == 0 or done[kinds[place - 1]] > action[1]
        )
        action = next(ready)
        waiting.remove(action)
        done[action[0]] += 1
        ordered.append(action)
    return ordered
