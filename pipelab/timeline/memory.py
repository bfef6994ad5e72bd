"""Activations that wait for their backward: how many, and how much memory over time."""

from typing import NamedTuple

import numpy as np

from pipelab.checked import numbered
from pipelab.schedules.action import B, F, I, W
from pipelab.schedules.schedule import Schedule

__all__ = ["Steps", "memory", "peak_in_flight"]


class Steps(NamedTuple):
    """A step function: `amount[i]` from `time[i]` to `time[i + 1]`."""

    time: np.ndarray
    amount: np.ndarray


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Per rank, most forwards whose full backward or input gradient has not ended.

    A rank does one thing at a time, so that its order alone decides; a pair holds both of its parts.
    In a schedule without backwards nothing waits for one: a rank holds what it works on.
    """
    if schedule.forward_only:
        return tuple(int(n > 0) for n in np.diff(schedule.first))
    change = np.zeros(len(schedule) + 1, dtype=np.int64)
    change[:-1] = (schedule.kind == F).astype(np.int64) - np.isin(schedule.kind, (B, I))
    held = np.cumsum(change)
    before = held[schedule.first[:-1] - 1] * (schedule.first[:-1] > 0)
    ranges = zip(schedule.first[:-1].tolist(), schedule.first[1:].tolist(), before.tolist(), strict=True)
    return tuple(int(held[low:high].max(initial=base)) - base for low, high, base in ranges)


def memory(timeline, rank: int) -> Steps:
    """What `rank` holds over time: a forward's activations from its start to the end of its backward.

    An input gradient leaves `weight_activation` behind until the weight gradient ends. Without backwards
    (inference), a forward's activations go as it ends.
    """
    schedule = timeline.schedule
    rank = numbered("memory", "rank", rank, schedule.ranks, "rank")
    mine = slice(schedule.first[rank], schedule.first[rank + 1])
    kind, stage = schedule.kind[mine], schedule.stage[mine]
    start, end = timeline.start[mine], timeline.end[mine]
    table = timeline.costs.tables(schedule)
    full, rest = table["activation"][stage], table["weight_activation"][stage]
    changes = [
        (start[kind == F], full[kind == F]),
        (end[kind == B], -full[kind == B]),
        (end[kind == I], (rest - full)[kind == I]),
        (end[kind == W], -rest[kind == W]),
    ]
    if schedule.forward_only:
        changes.append((end[kind == F], -full[kind == F]))
    time, change = (np.concatenate(parts) for parts in zip(*changes, strict=True))
    # What is freed at the moment at which something else is taken is freed first: one rank does one thing at a time.
    order = np.lexsort((change, time))
    time, amount = time[order], np.cumsum(change[order])
    last = np.append(time[1:] != time[:-1], True) if len(time) else np.zeros(0, bool)
    return Steps(np.append(0.0, time[last]), np.append(0.0, amount[last]))
