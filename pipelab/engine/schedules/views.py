"""The same schedule seen otherwise: with its messages, without them, with idle ticks."""

from dataclasses import replace

import numpy as np

from pipelab.engine.schedules.columns import (
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    TRANSFERS,
    B,
    Columns,
    F,
    I,
    columns_of,
)
from pipelab.engine.schedules.dependencies import crossings
from pipelab.engine.schedules.validation import compiled, refuse_impossible
from pipelab.fields import instance
from pipelab.schedules import Action, Schedule


def with_communication(schedule: Schedule) -> Schedule:
    """The same schedule with a send after and a receive before every action that crosses ranks.

    Parameters
    ----------
    schedule : Schedule
        Sends, receives and idle ticks that it lists already are left out first.

    Returns
    -------
    Schedule
        A pair has both receives before it and both sends after it.

    Raises
    ------
    InvalidValue
        If `schedule` is not a Schedule.
    InvalidSchedule
        It names stages or microbatches that do not exist, or stages on ranks that do not hold
        them.

    Examples
    --------
    >>> import pipelab as pl
    >>> print(with_communication(pl.schedule("1F1B", ranks=2, microbatches=1)))
    rank 0: 0F0 0SEND_F0 0RECV_B0 0B0
    rank 1: 1RECV_F0 1F0 1B0 1SEND_B0
    """
    remedy = "a Schedule; make one with pl.schedule(...)"
    instance("with_communication", "schedule", schedule, Schedule, remedy)
    columns = columns_of(schedule)
    kept = columns.__dict__.get("_communicating")
    if kept is None:
        kept = columns.__dict__["_communicating"] = _communicating(columns.computing())
    return kept.schedule


def _communicating(columns: Columns) -> Columns:
    refuse_impossible(columns)
    crossing = crossings(columns)
    after, before = np.append(crossing, False), np.insert(crossing, 0, False)
    forward, backward = columns.kind == F, np.isin(columns.kind, (I, B))
    n, stage = len(columns), columns.stage
    own = np.arange(n)
    # Places to sort by: receives before the action (or its pair), the action itself, sends after.
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, int | None]] = [
        (own, np.zeros(n), own, None)
    ]
    for chosen, kind, side, where in (
        (forward & before[stage], RECV_F, -1, own),
        (backward & after[stage], RECV_B, -1, own - columns.second),
        (forward & after[stage], SEND_F, 1, own + columns.paired),
        (backward & before[stage], SEND_B, 1, own),
    ):
        parts.append((where[chosen], np.full(chosen.sum(), side), own[chosen], kind))
    at, place, source = (np.concatenate([part[i] for part in parts]) for i in (0, 1, 2))
    kinds = np.concatenate(
        [columns.kind if k is None else np.full(len(s), k) for _, _, s, k in parts]
    )
    order = np.lexsort((source, place, at))
    rank = columns.rank[source[order]]
    return replace(
        columns,
        kind=kinds[order].astype(np.int8),
        stage=stage[source[order]],
        microbatch=columns.microbatch[source[order]],
        first=np.searchsorted(rank, np.arange(columns.ranks + 1)),
        paired=(columns.paired[source] & np.isin(kinds, TRANSFERS, invert=True))[order],
    )


def without_communication(schedule: Schedule) -> Schedule:
    """The same schedule without sends, receives and idle ticks: what computes alone."""
    return columns_of(schedule).computing().schedule


def with_idle(schedule: Schedule) -> Schedule:
    """The same schedule with an idle tick wherever a rank waits, every action taking one tick.

    Parameters
    ----------
    schedule : Schedule
        Its messages take no tick and are left out.

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
        It would take minutes to run; see `pipelab.engine.schedules.limits`.

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
    graph = compiled(columns)
    tick = graph.order.cell // columns.ranks - 1
    rows = []
    for rank, row in enumerate(columns.actions):
        ticks = tick[graph.first[rank] : graph.first[rank + 1]].tolist()
        cells = [Action.parse("")] * (ticks[-1] + 1 if ticks else 0)
        for t, action in zip(ticks, row, strict=True):
            cells[t] = action
        rows.append(cells)
    return Schedule(columns.name, columns.microbatches, columns.stage_rank, tuple(map(tuple, rows)))
