"""Whether a schedule can be run, and where its ranks wait when it does."""

from pipelab.engine.schedules.columns import columns_of
from pipelab.errors import InvalidSchedule
from pipelab.fields import instance
from pipelab.schedules import Action, Schedule


def defects(schedule: Schedule) -> tuple[str, ...]:
    """Why a schedule cannot be run: impossible, duplicate or missing actions, wrong order, or a deadlock.

    Parameters
    ----------
    schedule : Schedule
        Complete or not.

    Returns
    -------
    tuple of str
        Empty for a schedule that can be run; the first thousand of a longer list.

    Raises
    ------
    InvalidValue
        If `schedule` is not a Schedule.
    TooLarge
        It would take minutes to run; more than a million rounds of actions.

    Examples
    --------
    >>> import pipelab as pl
    >>> defects(pl.Schedule.of("mine", [["0F0", "0B0"], ["1F0"]]))
    ('1B0 is missing on rank 1',)
    """
    instance(
        "defects", "schedule", schedule, Schedule, "a Schedule; make one with pl.schedule(...)"
    )
    return columns_of(schedule).defects


def validate(schedule: Schedule) -> Schedule:
    """Return the schedule itself, or raise `InvalidSchedule` with all its defects."""
    if found := defects(schedule):
        raise InvalidSchedule(found, f"schedule {schedule.name!r}")
    return schedule


def with_idle(schedule: Schedule) -> Schedule:
    """The same schedule with an idle tick wherever a rank waits, every action taking one tick.

    Parameters
    ----------
    schedule : Schedule
        Its own idle ticks are left out first.

    Returns
    -------
    Schedule
        A pair takes one tick, too.

    Raises
    ------
    InvalidValue
        If `schedule` is not a Schedule.
    InvalidSchedule
        It cannot be run.
    TooLarge
        It would take minutes to run; more than a million rounds of actions.

    Examples
    --------
    >>> import pipelab as pl
    >>> print(with_idle(pl.schedule("1F1B", ranks=2, microbatches=2)))
    rank 0: 0F0 0F1 IDLE 0B0 IDLE 0B1
    rank 1: IDLE 1F0 1B0 1F1 1B1
    """
    remedy = "a Schedule; make one with pl.schedule(...)"
    instance("with_idle", "schedule", schedule, Schedule, remedy)
    columns = columns_of(schedule).computing()
    graph = columns.graph
    tick = graph.rounds.number - 1
    rows = []
    for rank, row in enumerate(columns.actions):
        ticks = tick[graph.first[rank] : graph.first[rank + 1]].tolist()
        cells = [Action.parse("")] * (ticks[-1] + 1 if ticks else 0)
        for t, action in zip(ticks, row, strict=True):
            cells[t] = action
        rows.append(cells)
    return Schedule(columns.name, columns.microbatches, columns.stage_rank, tuple(map(tuple, rows)))
