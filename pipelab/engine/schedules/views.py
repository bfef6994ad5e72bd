"""The same schedule seen otherwise: with its messages, with idle ticks, as a table."""

from dataclasses import replace

import numpy as np

from pipelab.engine.schedules.action import (
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    TRANSFERS,
    Action,
    B,
    F,
    I,
)
from pipelab.engine.schedules.dependencies import crossings
from pipelab.engine.schedules.schedule import Schedule

__all__ = ["as_html", "with_communication", "with_idle"]


def with_communication(schedule: Schedule) -> Schedule:
    """A receive right before every action whose data comes from another rank, a send right after one that sends.

    The parts of a pair stay together: both receives before it, both sends after it.
    """
    from pipelab.engine.schedules.validation import refuse_impossible

    schedule = schedule.without_communication()
    refuse_impossible(schedule)
    crossing = crossings(schedule)
    after, before = np.append(crossing, False), np.insert(crossing, 0, False)
    forward, backward = schedule.kind == F, np.isin(schedule.kind, (I, B))
    n, stage = len(schedule), schedule.stage
    second = np.concatenate([[False], schedule.paired[:-1]])
    own = np.arange(n)
    # Places to sort by: receives before the action (or its pair), the action itself, sends after.
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, int | None]] = [
        (own, np.zeros(n), own, None)
    ]
    for chosen, kind, side, where in (
        (forward & before[stage], RECV_F, -1, own),
        (backward & after[stage], RECV_B, -1, own - second),
        (forward & after[stage], SEND_F, 1, own + schedule.paired),
        (backward & before[stage], SEND_B, 1, own),
    ):
        parts.append((where[chosen], np.full(chosen.sum(), side), own[chosen], kind))
    at, place, source = (np.concatenate([part[i] for part in parts]) for i in (0, 1, 2))
    kinds = np.concatenate(
        [schedule.kind if k is None else np.full(len(s), k) for _, _, s, k in parts]
    )
    order = np.lexsort((source, place, at))
    rank = schedule.rank[source[order]]
    return replace(
        schedule,
        kind=kinds[order].astype(np.int8),
        stage=stage[source[order]],
        microbatch=schedule.microbatch[source[order]],
        first=np.searchsorted(rank, np.arange(schedule.ranks + 1)),
        paired=(schedule.paired[source] & np.isin(kinds, TRANSFERS, invert=True))[order],
    )


def with_idle(schedule: Schedule) -> Schedule:
    """Idle ticks where a rank waits, if every action and every pair takes one tick and messages none."""
    from pipelab.engine.schedules.validation import compiled

    schedule = schedule.without_communication()
    graph = compiled(schedule)
    tick = graph.order.cell // schedule.ranks - 1
    rows = []
    for rank, row in enumerate(schedule.actions):
        ticks = tick[graph.first[rank] : graph.first[rank + 1]].tolist()
        cells: list[Action | str] = [""] * (ticks[-1] + 1 if ticks else 0)
        for t, action in zip(ticks, row, strict=True):
            cells[t] = action
        rows.append(cells)
    return Schedule.of(
        schedule.name, rows, microbatches=schedule.microbatches, stage_rank=schedule.stage_rank
    )


def as_html(schedule: Schedule) -> str:
    """A line per rank, forwards, backwards and weight gradients on grounds of their own; long ones are cut."""
    from html import escape

    from pipelab.figures.theme import KIND_COLOURS, ink_on

    shown, limit = [], 60
    for rank, row in enumerate(schedule.actions[:32]):
        cells = []
        for action in row[:limit]:
            colour = KIND_COLOURS.get(action.kind, "#FFFFFF")
            style = (
                f"background:{colour};color:{ink_on(colour)};padding:1px 4px;border:1px solid white"
            )
            text = "+".join(map(str, action.parts)) or (
                "·" if action.kind == "IDLE" else str(action)
            )
            cells.append(f'<span style="{style}" title="{action}">{text}</span>')
        more = f" … {len(row) - limit} more" if len(row) > limit else ""
        shown.append(f"rank {rank}: {''.join(cells)}{more}")
    if schedule.ranks > 32:
        shown.append(f"… {schedule.ranks - 32} more ranks")
    head = f"{escape(schedule.name)}: {schedule.ranks} ranks, {schedule.microbatches} microbatches"
    return (
        f'<div style="font-family:monospace;line-height:1.7;white-space:nowrap;overflow-x:auto">{head}<br>'
        + ("<br>".join(shown) + "</div>")
    )
