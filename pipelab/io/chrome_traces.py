"""A timeline as a Chrome trace: a lane per rank, an arrow per message between ranks."""

import numpy as np

from pipelab.engine.timeline.timeline import Timeline
from pipelab.schedules import KINDS


def chrome_trace(timeline: Timeline) -> dict:
    """Return plain data in Chrome's trace event format; times in microseconds (a unit-less time counts as one)."""
    columns, scale = timeline.columns, timeline.costs.microseconds
    events = [
        {"ph": "M", "pid": 0, "tid": r, "name": "thread_name", "args": {"name": f"rank {r}"}}
        for r in range(columns.ranks)
    ]
    start, end = (timeline.start * scale).tolist(), (timeline.end * scale).tolist()
    numbers = (columns.stage, columns.microbatch, columns.kind, columns.rank)
    stage, microbatch, kind, rank = (column.tolist() for column in numbers)
    waited = timeline.names_waited_for(np.arange(len(columns)))
    for i, name in enumerate(columns.texts):
        arguments = {"stage": stage[i], "microbatch": microbatch[i]}
        if waited[i]:
            arguments["waited for"] = waited[i]
        event = {"ph": "X", "pid": 0, "tid": rank[i], "name": name, "cat": KINDS[kind[i]]}
        event |= {"ts": start[i], "dur": end[i] - start[i], "args": arguments}
        events.append(event)
    return {"traceEvents": events + _arrows(timeline, rank), "displayTimeUnit": "ms"}


def _arrows(timeline: Timeline, rank: list[int]) -> list[dict]:
    arrows, sent, scale = [], timeline.messages, timeline.costs.microseconds
    columns = sent.maker, sent.taker, sent.leaves * scale, sent.arrives * scale
    for maker, taker, leaves, arrives in zip(*(column.tolist() for column in columns), strict=True):
        shared = {"pid": 0, "name": "message", "cat": "message", "id": taker}
        arrows.append({**shared, "ph": "s", "tid": rank[maker], "ts": leaves})
        arrows.append({**shared, "ph": "f", "bp": "e", "tid": rank[taker], "ts": arrives})
    return arrows
