"""What waits for what: the data an action needs, and who makes it.

Forward of a stage needs the forward of the stage before; backward needs the backward of the
stage after, or on the last stage its own forward; a weight gradient needs its input gradient.
Every action of these has at most one maker on another rank, which keeps everything below small.
"""

from typing import Any

import numpy as np

from pipelab.engine.schedules.action import RECV_B, RECV_F, SEND_B, SEND_F, B, F, I, W
from pipelab.engine.schedules.schedule import Schedule

__all__ = ["crossings", "makers", "where"]


def where(schedule: Schedule, *kinds: int) -> np.ndarray:
    """Entry of the action of one of `kinds` for every stage and microbatch, (stages, microbatches); -1 for none."""
    table = np.full((schedule.stages, schedule.microbatches), -1, dtype=np.int64)
    chosen = np.flatnonzero(np.isin(schedule.kind, kinds))
    table[schedule.stage[chosen], schedule.microbatch[chosen]] = chosen
    return table


def makers(schedule: Schedule) -> np.ndarray:
    """The entry whose result each entry needs, shape (n,); -1 for none.

    With sends and receives shown, data takes the way of the messages: action → send → receive →
    action.
    """
    waits = np.full(len(schedule) + 1, -1, dtype=np.int64)  # one cell more, for -1 to write into
    forward, backward = where(schedule, F), where(schedule, I, B)
    waits[forward[1:]] = forward[:-1]
    waits[backward[:-1]] = backward[1:]
    waits[backward[-1]] = forward[-1]
    if schedule.splits_backward:
        weight = where(schedule, W)
        waits[weight] = np.where(weight >= 0, backward, -1)
    if schedule.communicates:
        _through_messages(schedule, waits, forward, SEND_F, RECV_F, step=1)
        _through_messages(schedule, waits, backward, SEND_B, RECV_B, step=-1)
    return waits[:-1]


def _through_messages(
    schedule: Schedule, waits: Any, made: Any, send_kind: int, recv_kind: int, step: int
) -> None:
    send, recv = where(schedule, send_kind), where(schedule, recv_kind)
    waits[send] = np.where(send >= 0, made, -1)
    sender = np.roll(send, step, axis=0)  # the message for stage s comes from stage s - step
    waits[recv] = np.where(recv >= 0, sender, -1)
    shown = recv >= 0
    waits[made[shown]] = recv[shown]


def crossings(schedule: Schedule) -> np.ndarray:
    """True for every boundary between stage s and s+1 that lies between two ranks, shape (stages - 1,)."""
    return schedule.holder[1:] != schedule.holder[:-1]
