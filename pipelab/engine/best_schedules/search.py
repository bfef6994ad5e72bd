"""`best_schedule(costs, microbatches)`: the shortest order of a pipeline's actions, proven.

It begins with the best published rule within the limits, and bisects: is there a schedule of at most
so many units? That is decided much sooner than a schedule is shortened step by step, as every action
has to lie between what comes before it and what must follow. The first length asked for is the bound
by formula, which most often is reached. What CP-SAT does not decide in time, it minimises.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from math import ceil, lcm
from typing import Any, NamedTuple

from pipelab.engine.best_schedules.program import Action, Answer, Program
from pipelab.engine.best_schedules.question import (
    MEMORY_SLACK,
    Question,
    exactly,
    misfit,
    question_of,
    unit_of,
    value_of,
)
from pipelab.engine.best_schedules.result import BestSchedule
from pipelab.engine.deadline import Deadline, deadline_of
from pipelab.engine.options import check_options
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.simulation import simulate
from pipelab.engine.timeline.timeline import Timeline
from pipelab.engine.tolerances import PROVEN_WITHIN
from pipelab.errors import InvalidSchedule, InvalidValue
from pipelab.fields import instance, whole_number
from pipelab.schedules import Schedule

_WHAT = "best_schedule"
# One stage per rank. Where the backward is split, a full one is run as its halves.
_RULES = ("GPipe", "1F1B", "ZBH1", "ZBH2")
# Beyond so many actions the greedy schedule takes seconds: it is made where no rule keeps to the limits.
_QUICK = 5_000
_FIRST_S = 30.0  # for the bound by formula, and at most a third of the time left
_STEP_S = 5.0  # for any other length, and at most a sixth
_UNDECIDED = 2  # lengths, before the rest of the time goes to minimising


class Progress(NamedTuple):
    """What is known at one moment: the shortest schedule so far, and what none is shorter than."""

    seconds: float
    value: float
    bound: float


def best_schedule(
    costs: StageCosts,
    microbatches: int,
    ranks: int | None = None,
    *,
    max_in_flight: int | Sequence[int] | None = None,
    memory: float | Sequence[float] | None = None,
    split_backward: bool = True,
    objective: str = "makespan",
    time_limit: float | None = 60,
    stop: threading.Event | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    workers: int | None = None,
) -> BestSchedule:
    """The shortest schedule with one stage per rank, and the proof that none is shorter.

    Every order of forwards, input gradients and weight gradients is considered, and every moment to
    start them. It begins with the best published rule (GPipe, 1F1B, ZB-H1, ZB-H2) within the limits,
    is never worse than that, and ends at once where this reaches `lower_bound`. Otherwise OR-tools'
    CP-SAT searches: `pip install "pipelab[schedules]"`.

    Parameters
    ----------
    costs : StageCosts
        Of one stage per rank, with messages that are buffered.
    microbatches : int
        m.
    ranks : int, optional
        p; not needed where `costs` has a list of numbers.
    max_in_flight : int or one per rank, optional
        Most microbatches that a rank holds between forward and input gradient (or full backward).
    memory : number or one per rank, optional
        Most that a rank holds of what `costs.activation` and `costs.weight_activation` count, in
        their unit.
    split_backward : bool
        False: input and weight gradient are one action, as in GPipe and 1F1B.
    objective : {"makespan", "span"}
        "makespan": from 0 to the last end. "span": what each of many steps takes that follow one
        another without a barrier, where ranks start no sooner than they need to: the longest time
        from a rank's first action to its last.
    time_limit : float or None
        Seconds.
    stop : threading.Event, optional
        Set it from anywhere to end with what there is.
    on_progress : function of Progress, optional
        Called from a thread whenever there is a shorter schedule.
    workers : int, optional
        Threads; by default as many as there are cores, at most 8.

    Returns
    -------
    BestSchedule
        Status, schedule, timeline and bound. "infeasible" where not even one microbatch fits in
        memory.

    Raises
    ------
    InvalidValue
        An argument does not fit; `ranks` is missing or contradicts the costs; a weight gradient is
        said to hold more than the whole microbatch.
    NotApplicable
        OR-tools is not installed, or clashes with highspy.
    TooLarge
        More than 200,000 actions.

    Notes
    -----
    CP-SAT counts in whole numbers. Costs of a few decimals are exact; others are rounded down, so
    that the bound holds for the true costs, and the schedule found is simulated with these. That
    leaves a gap of about 10⁻⁹, which counts as proven. Held against every order of small pipelines
    in the tests.

    Examples
    --------
    >>> import pipelab as pl
    >>> costs = pl.StageCosts(forward=[1, 2, 1], backward_input=[1, 2, 2], backward_weight=1)
    >>> best = pl.best_schedule(costs, microbatches=6, max_in_flight=3)
    >>> best.status, best.makespan, best.first["ZBH1"]
    ('optimal', 31.0, 32.0)
    """
    instance(_WHAT, "costs", costs, StageCosts, "StageCosts(forward, backward_input, ...)")
    check_options({"time_limit": time_limit, "stop": stop, "on_progress": on_progress})
    if objective not in ("makespan", "span"):
        raise InvalidValue(_WHAT, [("objective", objective, 'expected "makespan" or "span"')])
    if workers is not None:
        workers = whole_number(_WHAT, "workers", workers, most=1000)
    question = question_of(costs, microbatches, ranks, max_in_flight, memory, split_backward)
    with deadline_of(time_limit, stop) as deadline:
        if missing := misfit(question):
            return BestSchedule(
                question, objective, "infeasible", None, None, {}, deadline.spent, reason=missing
            )
        return _searched(
            question, objective, deadline, on_progress, workers or min(8, os.cpu_count() or 1)
        )


def _searched(
    question: Question,
    objective: str,
    deadline: Deadline,
    on_progress: Callable[[Progress], None] | None,
    workers: int,
) -> BestSchedule:
    starts = list(_first(question, deadline))
    first = {timeline.schedule.name: value_of(timeline, objective) for timeline in starts}
    best = min(starts, key=lambda timeline: first[timeline.schedule.name])
    bound = min(question.least(objective), first[best.schedule.name])

    def answer(timeline: Timeline, bound: float, **more: Any) -> BestSchedule:
        value = value_of(timeline, objective)
        proven = bound >= value * (1 - PROVEN_WITHIN)
        if proven:
            more["stopped_by"] = None
        status = "optimal" if proven else "feasible"
        return BestSchedule(
            question,
            objective,
            status,
            timeline,
            min(bound, value),
            first,
            deadline.spent,
            value=value,
            **more,
        )

    if (done := answer(best, bound)).status == "optimal":
        return done
    if reason := deadline.reason:
        return answer(best, bound, stopped_by=reason)
    # The time of a step is a mean over at most as many steps as there are ranks.
    parts = 1 if objective == "makespan" else lcm(*range(1, question.ranks + 1))
    unit = unit_of(question.times, best.makespan + question.work, parts)
    search = _Search(
        question, question.in_units(unit), objective, unit, deadline, on_progress, best
    )
    search.run(workers)
    timeline = min(best, search.best, key=lambda timeline: value_of(timeline, objective))
    solver = f"OR-tools CP-SAT {version('ortools')}"
    # Rounding down makes actions shorter: the bound holds for the true costs, too. The time of a
    # step may lie between two units, if these are no parts of the costs.
    exact = all((exactly(time) * unit / parts).denominator == 1 for time in question.times)
    less = 0 if objective == "makespan" or exact else 1
    bound = max(bound, float((search.low - less) / unit))
    return answer(timeline, bound, stopped_by=search.stopped_by, solver=solver)


def _first(question: Question, deadline: Deadline) -> Iterator[Timeline]:
    """The published rules that keep to the limits, and a greedy schedule; simulated, at least one."""
    found = 0
    for name in _RULES:
        made = None if found and deadline.reason else _by_rule(question, name)
        if made is not None and question.keeps(timeline := simulate(made, question.costs)):
            found += 1
            yield timeline
    if not found or (question.actions <= _QUICK and not deadline.reason):
        yield simulate(_greedy(question), question.costs)


def _by_rule(question: Question, name: str) -> Schedule | None:
    rule = schedule(name, question.ranks, question.microbatches)
    kinds = {action.kind for row in rule.actions for action in row}
    if "W" in kinds:
        return rule if question.split_backward else None
    if not question.split_backward:
        return rule
    halves = [
        [
            (kind, action.microbatch)
            for action in row
            for kind in ("IW" if action.kind == "B" else "F")
        ]
        for row in rule.actions
    ]
    return question.schedule(f"{name}, backward split", halves)


def _greedy(question: Question) -> Schedule:
    """What can start first goes first: input gradients before forwards, weight gradients in the gaps.

    A forward waits while it does not fit in memory, so this keeps to any limits that one microbatch
    fits in: the oldest microbatch of a rank can always go on.
    """
    ranks, m = question.ranks, question.microbatches
    comm = question.table["comm"].tolist()
    back = question.kinds[1]
    length = {kind: question.length[kind].tolist() for kind in question.kinds}
    whole, kept = (-question.takes[kind] for kind in ("B", "W"))
    done = [dict.fromkeys(question.kinds, 0) for _ in range(ranks)]
    ends: list[dict[str, list[float]]] = [{k: [] for k in question.kinds} for _ in range(ranks)]
    free = [0.0] * ranks
    rows: list[list[tuple[str, int]]] = [[] for _ in range(ranks)]

    def fits(rank: int) -> bool:
        full = done[rank]["F"] - done[rank][back] + 1
        rest = done[rank]["I"] - done[rank]["W"] if question.split_backward else 0
        if full > question.in_flight[rank]:
            return False
        if question.memory is None:
            return True
        held = full * whole[rank] + rest * kept[rank]
        return bool(held <= question.memory[rank] * (1 + MEMORY_SLACK))

    def arrives(rank: int, kind: str) -> float | None:
        """When the next action of this kind has what it works on; None where nobody knows yet."""
        k = done[rank][kind]
        if k == m:
            return None
        if kind == "F":
            if not fits(rank):
                return None
            if rank == 0:
                return 0.0
            before, delay = ends[rank - 1]["F"], comm[rank - 1]
        elif kind == back and rank < ranks - 1:
            before, delay = ends[rank + 1][back], comm[rank]
        else:
            before, delay = ends[rank]["F" if kind == back else back], 0.0
        return before[k] + delay if k < len(before) else None

    for _ in range(ranks * m * len(question.kinds)):
        # Of all ranks' next actions the one that starts first; at the same time the one that others
        # wait for most.
        start, _, rank, kind = min(
            (max(free[rank], at), order, rank, kind)
            for rank in range(ranks)
            for order, kind in enumerate((back, "F", "W")[: len(question.kinds)])
            if (at := arrives(rank, kind)) is not None
        )
        rows[rank].append((kind, done[rank][kind]))
        done[rank][kind] += 1
        free[rank] = start + length[kind][rank]
        ends[rank][kind].append(free[rank])
    return question.schedule("greedy", rows)


@dataclass
class _Search:
    """What is known while CP-SAT searches.

    Attributes
    ----------
    question, whole : Question
        With the true costs, and in whole units.
    objective : {"makespan", "span"}
    unit : Fraction
        How many units make 1 in the costs.
    best : Timeline
        The shortest schedule so far, at the true costs.
    low, high : int
        No schedule takes less, and `best` takes no more, in units.
    stopped_by : str or None
    """

    question: Question
    whole: Question
    objective: str
    unit: Fraction
    deadline: Deadline
    on_progress: Callable[[Progress], None] | None
    best: Timeline
    stopped_by: str | None = None

    def __post_init__(self) -> None:
        self.high = ceil(self._value(self.best.schedule))
        self.low = min(self.high, int(self.whole.least(self.objective)))

    def run(self, workers: int) -> None:
        """Shorten `best` until nothing is shorter, or time has run out."""
        length = lowest = formula = self.low  # `lowest`: below, nothing is asked any more
        undecided = 0
        while lowest < self.high and undecided < _UNDECIDED and not self.deadline.reason:
            most, share = (_FIRST_S, 3) if length == formula else (_STEP_S, 6)
            step = self.deadline.within(min(most, self.deadline.left / share))
            program = Program(self.whole, self.objective == "span", length, length)
            answer = program.solve(step, workers, lambda *_: None)
            if answer.bound > length:  # nothing is as short
                self.low = lowest = max(lowest, answer.bound)
            elif not self._take(answer):
                undecided += 1
                lowest = length + 1
            length = (lowest + self.high) // 2
        self.stopped_by = self.deadline.reason
        if self.low < self.high and not self.stopped_by:
            self._minimise(workers)
        self._tell(self.high, self.low)

    def _minimise(self, workers: int) -> None:
        program = Program(self.whole, self.objective == "span", self.low, self.high)
        if self.objective == "makespan":
            program.hint(_starts(simulate(self.best.schedule, self.whole.costs)))
        answer = program.solve(self.deadline, workers, self._tell)
        if answer.bound > self.high:
            raise RuntimeError(
                "CP-SAT calls a program infeasible that has a known solution; a mistake in pipelab"
            )
        self.low, self.stopped_by = max(self.low, answer.bound), answer.stopped_by
        self._take(answer)

    def _take(self, answer: Answer) -> bool:
        """Keep a schedule if it is shorter than the best; False if it is not, or there is none."""
        if answer.starts is None:
            return False
        try:
            order = in_order(self.whole, answer.starts)
            timeline = simulate(order, self.question.costs)
        except InvalidSchedule:
            # actions of no length at one moment, put in an order that cannot run
            return False
        value = ceil(self._value(order))
        if value >= self.high or not self.question.keeps(timeline):
            return False
        self.high, self.best = value, timeline
        self._tell(self.high, self.low)
        return True

    def _tell(self, value: int, bound: int) -> None:
        if self.on_progress is not None:
            best, least = float(value / self.unit), float(bound / self.unit)
            self.on_progress(Progress(self.deadline.spent, best, least))

    def _value(self, schedule: Schedule) -> float:
        """Of a schedule, in units."""
        return value_of(simulate(schedule, self.whole.costs), self.objective)


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
