"""What waits for what: the data an action needs, and who makes it.

Forward of a stage needs the forward of the stage before; backward needs the backward of the
stage after, or on the last stage its own forward; a weight gradient needs its input gradient.
Every action of these has at most one maker on another rank, which keeps everything below small.
"""

from typing import Any

import numpy as np

from pipelab.engine.schedules.columns import RECV_B, RECV_F, SEND_B, SEND_F, B, Columns, F, I, W


def where(columns: Columns, *kinds: int) -> np.ndarray:
    """Entry of the action of one of `kinds` for every stage and microbatch, (stages, microbatches); -1 for none."""
    table = np.full((columns.stages, columns.microbatches), -1, dtype=np.int64)
    chosen = np.flatnonzero(np.isin(columns.kind, kinds))
    table[columns.stage[chosen], columns.microbatch[chosen]] = chosen
    return table


def makers(columns: Columns) -> np.ndarray:
    """The entry whose result each entry needs, shape (n,); -1 for none.

    With sends and receives shown, data takes the path of the messages: action → send → receive →
    action.
    """
    waits = np.full(len(columns) + 1, -1, dtype=np.int64)  # one cell more, for -1 to write into
    forward, backward = where(columns, F), where(columns, I, B)
    waits[forward[1:]] = forward[:-1]
    waits[backward[:-1]] = backward[1:]
    waits[backward[-1]] = forward[-1]
    if columns.splits_backward:
        weight = where(columns, W)
        waits[weight] = np.where(weight >= 0, backward, -1)
    if columns.communicates:
        _through_messages(columns, waits, forward, SEND_F, RECV_F, step=1)
        _through_messages(columns, waits, backward, SEND_B, RECV_B, step=-1)
    return waits[:-1]


def _through_messages(
    columns: Columns, waits: Any, made: Any, send_kind: int, recv_kind: int, step: int
) -> None:
    send, recv = where(columns, send_kind), where(columns, recv_kind)
    waits[send] = np.where(send >= 0, made, -1)
    sender = np.roll(send, step, axis=0)  # the message for stage s comes from stage s - step
    waits[recv] = np.where(recv >= 0, sender, -1)
    shown = recv >= 0
    waits[made[shown]] = recv[shown]


def crossings(columns: Columns) -> np.ndarray:
    """True for every boundary between stage s and s+1 that lies between two ranks, shape (stages - 1,)."""
    return columns.holder[1:] != columns.holder[:-1]
