"""What waits for what once transfers cost time: four modes in which one rank sends to another.

buffered    the sender goes on at once; the message arrives `comm` later
queued      the same, but messages from one rank to another go one at a time (`queued.py`)
rendezvous  all that a rank sends and receives between two actions is posted together; the rank goes
            on when all of it has arrived, and each message needs both ranks to be there
blocking    sends and receives one after the other, in their order; each holds both ranks
"""

from typing import NamedTuple

import numpy as np

from pipelab.engine.schedules.columns import RECV_B, RECV_F, SEND_B, SEND_F, B, Columns, F, I
from pipelab.engine.schedules.compiled import Graph
from pipelab.engine.schedules.dependencies import crossings, makers, where
from pipelab.engine.schedules.validation import blocked_edges, compiled
from pipelab.errors import InvalidSchedule

TRANSFER_MODES = ("buffered", "queued", "rendezvous", "blocking")


class Wiring(NamedTuple):
    """A graph, and where the times of links count; the number of links means "none".

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
    """The graph for one transfer mode; made and checked once for each columns.

    Raises
    ------
    InvalidSchedule
        The schedule cannot be run, or deadlocks with these transfers; the message names the edges.
    """
    kept = columns.__dict__.setdefault("_wired", {})
    if transfers not in kept:
        kept[transfers] = _WIRED_BY[transfers](columns)
    return kept[transfers]


def incoming(columns: Columns) -> np.ndarray:
    """The link over which each entry's data arrives, shape (n,); the number of links for none."""
    no_link = columns.stages - 1
    link = np.full(len(columns), no_link)
    forward = columns.kind == (RECV_F if columns.communicates else F)
    backward = np.isin(columns.kind, (RECV_B,) if columns.communicates else (B, I))
    link[forward] = columns.stage[forward] - 1
    link[backward] = columns.stage[backward]
    crossing = np.append(crossings(columns), False)
    # stage 0's forward has link -1: the last cell, False
    return np.where(crossing[link], link, no_link)


def slots(columns: Columns, graph: Graph, values: np.ndarray, nothing: float) -> list[np.ndarray]:
    """Values of entries by node: an array for single entries and first halves of pairs, and one for second halves.

    The second array is there only if the schedule has pairs.
    """
    second = columns.second
    found = [values[~second]]
    if second.any():
        other = np.full(len(graph), nothing)
        other[graph.node[second]] = values[second]
        found.append(other)
    return found


def _buffered(columns: Columns) -> Wiring:
    graph = compiled(columns)
    arriving = slots(columns, graph, incoming(columns), columns.stages - 1)
    return Wiring(graph, (None, *arriving))


def _rendezvous(columns: Columns) -> Wiring:
    """Besides the buffered edges: a rank goes on once the messages it sent have arrived.

        sending rank      … p ──────────▶ x …
                             ╲ message
        receiving rank    … q ──────────▶ y …

    The message that p makes for y starts when p and q have both ended, and x starts when it has
    arrived: so x waits for q, too. Both x and y wait for the message, whether p or q was later.
    """
    if columns.communicates:
        defect = "its sends and receives have a fixed order; use transfers='blocking' or without_communication()"
        raise InvalidSchedule([defect], f"schedule {columns.name!r} with transfers='rendezvous'")
    graph, no_link = compiled(columns), columns.stages - 1
    before, no_node = graph.waits[0], len(graph)

    def of_node_before(values: np.ndarray, nothing: int) -> np.ndarray:
        """Of every node the value that `values` has for the node before it on its rank."""
        return np.append(values, nothing)[before]

    receivers, outgoing = _messages(columns, graph)
    # seen from x: y is the receiver of what p made, and q is the node before y
    q = [np.append(before, no_node)[of_node_before(y, no_node)] for y in receivers]
    outgoing = [of_node_before(link, no_link) for link in outgoing]
    arriving = slots(columns, graph, incoming(columns), no_link)
    wired = Graph(graph.first, graph.node, (*graph.waits, *q), graph.meant)
    _refuse_deadlock(columns, wired, "rendezvous", len(graph.waits))
    after_own_rank = np.stack([*arriving, *outgoing], axis=1)  # after p: all that was posted
    return Wiring(wired, (after_own_rank, *arriving, *outgoing))


def _messages(columns: Columns, graph: Graph) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For every node that sends: the node that receives it, and over which link; as `slots`."""
    no_link, no_node = columns.stages - 1, len(graph)
    link, maker = incoming(columns), makers(columns)
    received = np.flatnonzero(link < no_link)  # entries whose data comes over a link
    receiver, over = np.full(len(columns), no_node), np.full(len(columns), no_link)
    receiver[maker[received]] = graph.node[received]
    over[maker[received]] = link[received]
    return slots(columns, graph, receiver, no_node), slots(columns, graph, over, no_link)


def _blocking(columns: Columns) -> Wiring:
    """A send and its receive start together: each waits for what the other's rank does before."""
    graph, no_link = compiled(columns), columns.stages - 1
    before, node = graph.waits[0], graph.node
    meets, held = np.full(len(graph), len(graph)), np.full(len(graph), no_link)
    for send_kind, receive_kind, step in ((SEND_F, RECV_F, 1), (SEND_B, RECV_B, -1)):
        sends = where(columns, send_kind)
        # row s: what stage s + step receives from stage s
        receives = np.roll(where(columns, receive_kind), -step, axis=0)
        stage, microbatch = np.nonzero(sends >= 0)
        sender = node[sends[stage, microbatch]]
        receiver = node[receives[stage, microbatch]]
        meets[sender], meets[receiver] = before[receiver], before[sender]
        held[sender] = held[receiver] = stage if step > 0 else stage - 1
    wired = Graph(graph.first, node, (before, meets))
    _refuse_deadlock(columns, wired, "blocking", 1)
    return Wiring(wired, (None, None), held)


_WIRED_BY = {
    "buffered": _buffered,
    "queued": _buffered,
    "rendezvous": _rendezvous,
    "blocking": _blocking,
}


def _refuse_deadlock(columns: Columns, graph: Graph, transfers: str, data_waits: int) -> None:
    """Raise if the ranks cannot all run to the end.

    Of the graph's waits, the first `data_waits` are for data or for the own rank, the others for
    another rank to be there.
    """
    reasons = ["{}"] * data_waits
    reasons += ["a message to or from the rank busy with {}"] * (len(graph.waits) - data_waits)
    edges = blocked_edges(columns, graph, tuple(reasons))
    if edges:
        raise InvalidSchedule(edges, f"schedule {columns.name!r} with transfers={transfers!r}")
