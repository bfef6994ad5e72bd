"""Can this schedule be run? Every missing, duplicate or impossible action, or the edges of the deadlock."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, SupportsInt

import numpy as np

from pipelab.engine.schedules.columns import (
    IDLE,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    B,
    Columns,
    F,
    I,
    W,
    columns_of,
)
from pipelab.engine.schedules.compiled import Graph, entries_graph
from pipelab.engine.schedules.dependencies import makers, where
from pipelab.engine.schedules.limits import MOST_DEFECTS
from pipelab.errors import InvalidSchedule
from pipelab.fields import given, instance
from pipelab.schedules import KINDS, Schedule


def validate(schedule: Schedule) -> Schedule:
    """Return the schedule itself, or raise `InvalidSchedule` with all its defects."""
    refuse(columns_of(schedule))
    return schedule


def refuse(columns: Columns) -> None:
    """Raise `InvalidSchedule` with all defects, if there are any."""
    found = _checked(columns)[0]
    if found:
        raise InvalidSchedule(found, f"schedule {columns.name!r}")


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
        It would take minutes to run; see `pipelab.engine.schedules.limits`.

    Examples
    --------
    >>> import pipelab as pl
    >>> defects(pl.Schedule.of("mine", [["0F0", "0B0"], ["1F0"]]))
    ('1B0 is missing on rank 1',)
    """
    instance(
        "defects", "schedule", schedule, Schedule, "a Schedule; make one with pl.schedule(...)"
    )
    return _checked(columns_of(schedule))[0]


def compiled(columns: Columns) -> Graph:
    """The schedule's graph; checked and compiled once.

    Raises
    ------
    InvalidSchedule
    """
    refuse(columns)
    return given(_checked(columns)[1])


def _checked(columns: Columns) -> tuple[tuple[str, ...], Graph | None]:
    """Defects and graph, kept on the schedule, which cannot change."""
    kept = columns.__dict__.get("_checked")
    if kept is None:
        found = (
            _listed(_impossible(columns))
            or _listed(_wrong_numbers(columns))
            or _listed(_wrong_order(columns))
        )
        graph = None
        if not found:
            graph = entries_graph(columns)
            found = tuple(blocked_edges(columns, graph))
        kept = columns.__dict__["_checked"] = found, graph
    return kept


def _listed(found: Iterable[str]) -> tuple[str, ...]:
    """The first thousand defects, and a last sentence where there are more."""
    found = iter(found)
    first = tuple(islice(found, MOST_DEFECTS))
    more = next(found, None) is not None
    return (*first, f"and more; the first {MOST_DEFECTS:,} are listed") if more else first


def refuse_impossible(columns: Columns) -> None:
    """Raise `InvalidSchedule` for actions that no table of stages and microbatches can hold."""
    found = _listed(_impossible(columns))
    if found:
        raise InvalidSchedule(found, f"schedule {columns.name!r}")


def _impossible(columns: Columns) -> Iterator[str]:
    """Actions of stages or microbatches that do not exist, on a rank that does not hold the stage, or bad pairs."""
    working = columns.kind != IDLE
    holders = columns.holder
    if (holders >= columns.ranks).any():
        bad = int(np.flatnonzero(holders >= columns.ranks)[0])
        yield f"stage {bad} is on rank {holders[bad]}, but ranks are 0 to {columns.ranks - 1}"
        return
    inside = (columns.stage >= 0) & (columns.stage < columns.stages)
    for i in np.flatnonzero(working & ~inside):
        yield f"{_place(columns, i)}: stages are 0 to {columns.stages - 1}"
    known = (columns.microbatch >= 0) & (columns.microbatch < columns.microbatches)
    for i in np.flatnonzero(working & ~known):
        yield f"{_place(columns, i)}: microbatches are 0 to {columns.microbatches - 1}"
    holder = holders[np.where(inside, columns.stage, 0)]
    for i in np.flatnonzero(working & inside & (holder != columns.rank)):
        yield f"{_place(columns, i)}: stage {columns.stage[i]} is on rank {holder[i]}"
    for i in np.flatnonzero(columns.paired):
        partner = i + 1 < len(columns) and columns.rank[i + 1] == columns.rank[i]
        if not partner or (columns.kind[i], columns.kind[i + 1]) != (F, B):
            yield f"{_place(columns, i)}: a pair is a forward and a full backward"


def _wrong_numbers(columns: Columns) -> Iterator[str]:
    """Actions there twice or not at all: of every stage and microbatch one F, and one B or else one I and one W."""
    shape = columns.stages, columns.microbatches
    cell = columns.stage * np.int64(shape[1]) + columns.microbatch
    cells = shape[0] * shape[1]
    # most of a table would be empty: one high number is enough for that
    if cells > 10 * len(columns) + 1_000_000:
        yield _first_gap(columns, cell, cells)
        return
    code = np.where(columns.kind == IDLE, -1, columns.kind * np.int64(cells) + cell)
    count = np.bincount(code[code >= 0], minlength=IDLE * cells).reshape(IDLE, *shape)
    if (count > 1).any():
        yield from _doubled(columns, count, code)
    both = (count[B] > 0) & ((count[I] > 0) | (count[W] > 0))
    for stage, batch in np.argwhere(both):
        half = "I" if count[I, stage, batch] else "W"
        yield f"{stage}B{batch} and {stage}{half}{batch} do the same work; expected B, or I and W"
    wanted = {F: np.ones(shape, bool)}
    if not columns.forward_only:
        split = (count[I] > 0) | (count[W] > 0)
        wanted |= {B: ~split, I: split, W: split}
    if columns.communicates:
        wanted |= _wanted_messages(columns, shape)
    for kind, mask in wanted.items():
        rank = columns.holder
        for stage, batch in np.argwhere(mask & (count[kind] == 0)):
            yield f"{stage}{KINDS[kind]}{batch} is missing on rank {rank[stage]}"
        if kind in (SEND_F, RECV_F, SEND_B, RECV_B):
            for stage, batch in np.argwhere(~mask & (count[kind] > 0)):
                yield f"{stage}{KINDS[kind]}{batch} on rank {rank[stage]} has no other rank at its far end"


def _first_gap(columns: Columns, cell: np.ndarray, cells: int) -> str:
    there = np.unique(cell[columns.kind == F])
    gap = np.append(there, -1) != np.arange(len(there) + 1)
    stage, batch = divmod(int(np.argmax(gap)), columns.microbatches)
    counted = (
        f"{columns.stages:,} stages · {columns.microbatches:,} microbatches need {cells:,} forwards"
    )
    missing = f"{stage}F{batch} is missing on rank {columns.holder[stage]}"
    return f"{missing}: {counted} and there are {len(there):,}"


def _doubled(columns: Columns, count: np.ndarray, code: np.ndarray) -> Iterator[str]:
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    for flat in np.flatnonzero(count.ravel() > 1):
        kind, stage, batch = np.unravel_index(flat, count.shape)
        entries = order[slice(*np.searchsorted(ordered, [flat, flat + 1]))]
        places = ", ".join(_where(columns, i) for i in entries[:5]) + ", …" * (len(entries) > 5)
        yield f"{stage}{KINDS[kind]}{batch} is there {len(entries)} times, expected once ({places})"


def _wanted_messages(columns: Columns, shape: Any) -> dict[int, np.ndarray]:
    """Which sends and receives there must be, once any is shown."""
    across = columns.holder[1:] != columns.holder[:-1]
    after, before = np.append(across, False)[:, None], np.insert(across, 0, False)[:, None]
    whole = np.ones(shape, bool)
    back = whole & (not columns.forward_only)
    return {
        SEND_F: after & whole,
        RECV_F: before & whole,
        SEND_B: before & back,
        RECV_B: after & back,
    }


def _wrong_order(columns: Columns) -> Iterator[str]:
    """Actions listed before what they need on their own rank."""
    pairs = [makers(columns)]
    if not columns.forward_only:
        forward, backward = where(columns, F), where(columns, I, B)
        own = np.full(len(columns), -1)
        own[backward] = forward
        pairs.append(np.where(own == pairs[0], -1, own))  # on the last stage both are the same
    late = [
        (needs > np.arange(len(columns))) & (columns.rank[needs] == columns.rank) for needs in pairs
    ]
    for i in np.flatnonzero(np.logical_or.reduce(late)):
        for needs in (needs for needs, mask in zip(pairs, late, strict=True) if mask[i]):
            yield f"{_place(columns, i)} waits for {columns.action(needs[i])}, which comes later on the same rank"
    # The two parts of a pair run at the same time, so neither may need the other.
    for needs in pairs:
        for i in np.flatnonzero(columns.paired):
            if needs[i + 1] == i:
                yield f"{_place(columns, i)}: the backward of the pair waits for its own forward"


def blocked_edges(columns: Columns, graph: Graph, reasons: tuple[str, ...] = ()) -> list[str]:
    """The circle of ranks that wait for each other, one sentence per edge; empty without a deadlock.

    Parameters
    ----------
    reasons : tuple of str
        For each array of `graph.waits`, what it means to wait for that node; "{}" is the node.
    """
    stuck = graph.order.stuck
    if (stuck < 0).all():
        return []
    reasons = reasons or ("{}",) * len(graph.waits)
    ran = np.append(graph.order.cell > 0, True)
    entry = np.unique(graph.node, return_index=True)[1]  # the first entry of every node
    rank, seen, edges = int(np.flatnonzero(stuck >= 0)[0]), [], []
    while rank not in seen:
        seen.append(rank)
        head = int(stuck[rank])
        which = next(i for i, waits in enumerate(graph.waits) if i and not ran[waits[head]])
        node, needed = int(graph.waits[which][head]), graph.needed(which)
        # Data comes from one half of a pair and goes to one half; a rank is busy with both.
        second = int(which == 2 and needed is not None)
        whole = columns.whole(int(entry[head]))
        waiting = (
            f"{whole.parts[second]} of {whole}"
            if whole.parts and needed is not None
            else str(whole)
        )
        blocker = (
            columns.whole(int(entry[node])) if needed is None else columns.action(int(needed[head]))
        )
        other = int(columns.rank[entry[node]])
        behind = (
            ""
            if node == stuck[other]
            else f", which comes after {columns.whole(int(entry[stuck[other]]))}"
        )
        edges.append(
            f"{waiting} on rank {rank} waits for {reasons[which].format(blocker)} on rank {other}{behind}"
        )
        rank = other
    circle = edges[seen.index(rank) :]
    return [f"deadlock: {circle[0]}", *circle[1:]]


def _where(columns: Columns, i: int) -> str:
    rank = int(columns.rank[i])
    return f"rank {rank}, position {i - int(columns.first[rank])}"


def _place(columns: Columns, i: SupportsInt) -> str:
    return f"{columns.action(int(i))} ({_where(columns, int(i))})"
