"""Activations that wait for their backward: how many, and how much memory over time."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelab.engine.schedules.columns import B, Columns, F, I, W
from pipelab.errors import InvalidValue
from pipelab.fields import numbered

if TYPE_CHECKING:
    from pipelab.engine.timeline.timeline import Timeline


class Steps(NamedTuple):
    """A step function: `amount[i]` from `time[i]` to `time[i + 1]`, which may be the same moment."""

    time: np.ndarray
    amount: np.ndarray


def peak_in_flight(columns: Columns) -> tuple[int, ...]:
    """Per rank, most forwards whose full backward or input gradient has not ended.

    A rank does one thing at a time, so that its order alone decides; a pair holds both of its
    parts. In a schedule without backwards nothing waits for one: a rank holds what it works on.
    """
    if columns.forward_only:
        return tuple(int(n > 0) for n in np.diff(columns.first))
    change = np.zeros(len(columns) + 1, dtype=np.int64)
    change[:-1] = (columns.kind == F).astype(np.int64) - np.isin(columns.kind, (B, I))
    held = np.cumsum(change)
    before = held[columns.first[:-1] - 1] * (columns.first[:-1] > 0)
    ranges = zip(
        columns.first[:-1].tolist(), columns.first[1:].tolist(), before.tolist(), strict=True
    )
    return tuple(int(held[low:high].max(initial=base)) - base for low, high, base in ranges)


def held_counts(columns: Columns) -> tuple[np.ndarray, ...]:
    """Per rank, how much its order has it hold at the fullest moments, whatever the times.

    Returns
    -------
    tuple of int arrays, shape (n, 2)
        In chunks: forwards whose full backward or input gradient has not ended, and input gradients
        whose weight gradient has not. Of the pairs that occur those that no other exceeds in both;
        with a activations of a chunk, and w of these still held by its weight gradient, the peak of
        `memory` is the largest i·a + j·w.
    """
    found, held = [], np.zeros((2 * len(columns), 2), dtype=np.int64)
    # A forward counts before it runs, and what it leaves free after: two lines per entry.
    held[::2, 0] = columns.kind == F
    held[1::2, 0] = -np.isin(columns.kind, (B, I)).astype(np.int64)
    held[1::2, 1] = (columns.kind == I).astype(np.int64) - (columns.kind == W)
    for low, high in zip(columns.first[:-1].tolist(), columns.first[1:].tolist(), strict=True):
        forwards, gradients = np.cumsum(held[2 * low : 2 * high], axis=0).T
        most = np.full(forwards.max(initial=0) + 2, -1)
        np.maximum.at(most, forwards, gradients)
        # more than is held with more forwards
        beyond = np.maximum.accumulate(most[::-1])[::-1]
        kept = np.flatnonzero(most[:-1] > beyond[1:])
        found.append(np.stack([kept, most[kept]], axis=1))
    return tuple(found)


def memory(timeline: "Timeline", rank: int) -> Steps:
    """What `rank` holds over time: a forward's activations from its start to the end of its backward.

    An input gradient leaves `weight_activation` behind until the weight gradient ends; where a
    backward is split, the costs must say how much. Without backwards (inference), a forward's
    activations go as it ends.
    """
    columns = timeline.columns
    rank = numbered("memory", "rank", rank, columns.ranks, "rank")
    mine = slice(columns.first[rank], columns.first[rank + 1])
    kind, stage, node = columns.kind[mine], columns.stage[mine], timeline.graph.node[mine]
    start, end = timeline.start[mine], timeline.end[mine]
    table = timeline.costs.tables(timeline.schedule)
    full, rest = table["activation"][stage], np.zeros(len(stage))
    if columns.splits_backward:
        if timeline.costs.weight_activation is None:
            expected = (
                f"{columns.name} splits its backward: expected what its weight gradient still needs of a "
                "microbatch's activations, such as StageCosts(…, weight_activation=32 / 34)"
            )
            raise InvalidValue("memory", [("weight_activation", None, expected)])
        rest = table["weight_activation"][stage]
    changes = [
        (kind == F, 0, start, full),
        (kind == B, 1, end, -full),
        (kind == I, 1, end, rest - full),
        (kind == W, 1, end, -rest),
    ]
    if columns.forward_only:
        changes.append((kind == F, 1, end, -full))
    # In the order of the rank, which does one thing at a time: each node takes as it starts and
    # frees as it ends.
    place, time, change = (
        np.concatenate(parts)
        for parts in zip(
            *((2 * node[m] + late, at[m], by[m]) for m, late, at, by in changes), strict=True
        )
    )
    order = np.argsort(place, kind="stable")
    return _steps(time[order], change[order])


def _steps(time: np.ndarray, change: np.ndarray) -> Steps:
    """One step per moment, and one of no length before it where more was held for that moment alone."""
    amount = np.cumsum(change)
    begins = (
        np.flatnonzero(np.append(True, time[1:] != time[:-1]))
        if len(time)
        else np.zeros(0, np.int64)
    )
    if not len(begins):
        return Steps(np.zeros(1), np.zeros(1))
    last = amount[np.append(begins[1:], len(time)) - 1]
    most, before = np.maximum.reduceat(amount, begins), np.append(0.0, last[:-1])
    shown = np.stack([most > np.maximum(before, last), np.ones(len(last), bool)], axis=1).ravel()
    times, amounts = np.repeat(time[begins], 2), np.stack([most, last], axis=1).ravel()
    return Steps(np.append(0.0, times[shown]), np.append(0.0, amounts[shown]))
