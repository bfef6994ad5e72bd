"""What waits for what once transfers cost time: three ways in which two ranks hand a message over.

buffered    the sender goes on at once; the message arrives `comm` later
rendezvous  all that a rank sends and receives between two actions is posted together; the rank goes
            on when all of it is through, and each message needs both ranks there
blocking    every send and receive in its turn, one after the other; both ranks are held meanwhile
"""

from typing import NamedTuple

import numpy as np

from pipelab.engine.schedules.columns import RECV_B, RECV_F, SEND_B, SEND_F, B, Columns, F, I
from pipelab.engine.schedules.compiled import Graph
from pipelab.engine.schedules.dependencies import crossings, makers, where
from pipelab.engine.schedules.validation import blocked_edges, compiled
from pipelab.errors import InvalidSchedule

__all__ = ["TRANSFER_MODES", "Wiring", "wire"]

TRANSFER_MODES = ("buffered", "rendezvous", "blocking")


class Wiring(NamedTuple):
    """A graph, and which link's time is added where; the number of links stands for "none".

    Attributes
    ----------
    graph : Graph
    links : one int array of shape (nodes,) or (nodes, k), or None, per array of the graph's waits
        A node starts that link's time after what it waits for; of k links the slowest counts.
    held : int array of shape (nodes,), or None
        The link whose time a send or receive takes itself.
    """

    graph: Graph
    links: tuple[np.ndarray | None, ...]
    held: np.ndarray | None = None


def wire(columns: Columns, transfers: str) -> Wiring:
    """The graph for one way of handing over; made and checked once for each schedule.

    Raises
    ------
    InvalidSchedule
        The schedule cannot be run, or deadlocks with these transfers; the message names the edges.
    """
    kept = columns.__dict__.setdefault("_wired", {})
    if transfers not in kept:
        kept[transfers] = {"buffered": _buffered, "rendezvous": _rendezvous, "blocking": _blocking}[
            transfers
        ](columns)
    return kept[transfers]


def _incoming(columns: Columns) -> np.ndarray:
    """The link over which each entry's data arrives, shape (n,); the number of links for none."""
    none = columns.stages - 1
    link = np.full(len(columns), none)
    forward = columns.kind == (RECV_F if columns.communicates else F)
    backward = np.isin(columns.kind, (RECV_B,) if columns.communicates else (B, I))
    link[forward] = columns.stage[forward] - 1
    link[backward] = columns.stage[backward]
    crossing = np.append(crossings(columns), False)
    # stage 0's forward has link -1, the last cell: none
    return np.where(crossing[link], link, none)


def _slots(columns: Columns, graph: Graph, values: np.ndarray, nothing: int) -> list[np.ndarray]:
    """Values of entries by node: one array for plain entries and first parts of pairs, one for second parts."""
    second = columns.second
    slots = [values[~second]]
    if second.any():
        other = np.full(len(graph), nothing)
        other[graph.node[second]] = values[second]
        slots.append(other)
    return slots


def _buffered(columns: Columns) -> Wiring:
    graph = compiled(columns)
    incoming = _slots(columns, graph, _incoming(columns), columns.stages - 1)
    return Wiring(graph, (None, *incoming))


def _rendezvous(columns: Columns) -> Wiring:
    """Besides the buffered edges: a rank goes on once what it sends has been taken.

    A message that `sender` makes starts when the receiving rank has ended what stands before the
    receiving action. Until it is through, neither rank starts its next action.
    """
    if columns.communicates:
        defect = "its sends and receives stand in a fixed order; use transfers='blocking' or without_communication()"
        raise InvalidSchedule([defect], f"schedule {columns.name!r} with transfers='rendezvous'")
    graph, none = compiled(columns), columns.stages - 1
    nothing, before, maker, link = len(graph), graph.waits[0], makers(columns), _incoming(columns)
    sent = np.flatnonzero(link < none)
    user, over = np.full(len(columns), nothing), np.full(len(columns), none)
    user[maker[sent]], over[maker[sent]] = graph.node[sent], link[sent]
    takers, outgoing = _slots(columns, graph, user, nothing), _slots(columns, graph, over, none)
    # From here on seen from the node after the sender: whose rank must be there, and over which
    # link.
    there = [np.append(before, nothing)[np.append(taker, nothing)[before]] for taker in takers]
    outgoing = [np.append(o, none)[before] for o in outgoing]
    incoming = _slots(columns, graph, link, none)
    wired = Graph(graph.first, graph.node, (*graph.waits, *there), graph.meant)
    _refuse_deadlock(columns, wired, "rendezvous", len(graph.waits))
    return Wiring(wired, (np.stack([*incoming, *outgoing], axis=1), *incoming, *outgoing))


def _blocking(columns: Columns) -> Wiring:
    """A send and its receive start together: each waits for what the other's rank does before."""
    graph, none = compiled(columns), columns.stages - 1
    before, node = graph.waits[0], graph.node
    meets, held = np.full(len(graph), len(graph)), np.full(len(graph), none)
    for send_kind, recv_kind, step in ((SEND_F, RECV_F, 1), (SEND_B, RECV_B, -1)):
        send, recv = where(columns, send_kind), np.roll(where(columns, recv_kind), -step, axis=0)
        stage = np.broadcast_to(np.arange(columns.stages)[:, None], send.shape)[send >= 0]
        sender, receiver = node[send[send >= 0]], node[recv[send >= 0]]
        meets[sender], meets[receiver] = before[receiver], before[sender]
        held[sender] = held[receiver] = stage if step > 0 else stage - 1
    wired = Graph(graph.first, node, (before, meets))
    _refuse_deadlock(columns, wired, "blocking", 1)
    return Wiring(wired, (None, None), held)


def _refuse_deadlock(columns: Columns, graph: Graph, transfers: str, data_waits: int) -> None:
    """Raise if the rounds of `graph` do not run to the end; waits after `data_waits` are for the other rank."""
    reasons = ["{}"] * data_waits + ["a message to or from the rank busy with {}"] * (
        len(graph.waits) - data_waits
    )
    edges = blocked_edges(columns, graph, tuple(reasons))
    if edges:
        raise InvalidSchedule(edges, f"schedule {columns.name!r} with transfers={transfers!r}")
