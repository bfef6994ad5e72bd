"""`best_schedule(costs, microbatches)`: the shortest order of a pipeline's actions, proven."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import floor, lcm
from typing import Any

import numpy as np

from pipelab.engine.best_schedules.arguments import misfit, question_of
from pipelab.engine.best_schedules.bisection import Bisection, Progress
from pipelab.engine.best_schedules.program import counts_exactly, time_unit
from pipelab.engine.best_schedules.question import MEMORY_SLACK, Question
from pipelab.engine.best_schedules.repeated_steps import span_bound, value_of
from pipelab.engine.best_schedules.result import BestSchedule
from pipelab.engine.best_schedules.start import first_schedules
from pipelab.engine.deadline import Deadline, deadline_of
from pipelab.engine.options import check_options
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.formulas import lower_bound
from pipelab.engine.timeline.timeline import Timeline
from pipelab.engine.tolerances import PROVEN_WITHIN
from pipelab.errors import InvalidValue
from pipelab.fields import instance, whole_number

_WHAT = "best_schedule"


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
    starts = list(first_schedules(question, deadline))
    first = {timeline.schedule.name: value_of(timeline, objective) for timeline in starts}
    best = min(starts, key=lambda timeline: first[timeline.schedule.name])
    bound = min(_least(question, objective), first[best.schedule.name])

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
    unit = time_unit(question, best.makespan + question.work, parts=parts)
    search = Bisection(question, objective, unit, workers, deadline, on_progress)
    found = search.run(best, lambda whole: _least(whole, objective))
    timeline = min(best, found.timeline, key=lambda timeline: value_of(timeline, objective))
    solver = f"OR-tools CP-SAT {_version()}"
    # Rounding down makes actions shorter: the bound holds for the true costs, too. The time of a
    # step may lie between two units, if these are no parts of the costs.
    less = 0 if objective == "makespan" or counts_exactly(question, unit / parts) else 1
    bound = max(bound, float((found.bound - less) / unit))
    return answer(timeline, bound, stopped_by=found.stopped_by, solver=solver)


def _least(question: Question, objective: str) -> float:
    """What no schedule is shorter than, by formula."""
    held = list(question.in_flight)
    if question.memory is not None:
        for rank, (most, each) in enumerate(
            zip(question.memory, (-question.takes["B"]).tolist(), strict=True)
        ):
            if each > 0:
                held[rank] = min(held[rank], max(1, floor(most * (1 + MEMORY_SLACK) / each)))
    if objective == "span":
        return span_bound(question, np.array(held))
    return lower_bound(
        question.ranks,
        question.microbatches,
        replace(question.costs, overlap=1.0),
        in_flight=held,
        split_backward=question.split_backward,
    )


def _version() -> str:
    from importlib.metadata import version

    return version("ortools")
