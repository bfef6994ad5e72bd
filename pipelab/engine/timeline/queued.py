"""Messages that queue: between two ranks, one way, one message at a time.

With buffered transfers a link only delays, and carries any number of messages at once. Here each
pair of ranks has a lane in each direction, which carries messages in the order in which the sender
made them. A lane is a rank of its own whose actions are messages:

    sending rank     … p ─┐   … q ─┐
    lane                  └▶ [p's message][q's message]
    receiving rank                        └▶ x …      └▶ y …

From the times of this larger graph follows how late each message is; the timeline itself keeps the
ranks' own nodes, with these delays.
"""

from typing import NamedTuple

import numpy as np

from pipelab.engine.schedules.columns import Columns
from pipelab.engine.schedules.compiled import Graph
from pipelab.engine.schedules.dependencies import makers


class Lanes(NamedTuple):
    """The larger graph, in which messages are nodes after the ranks' own.

    Attributes
    ----------
    graph : Graph
    received, made_by : int arrays, shape (messages,)
        Of each message the entry that needs it and the entry that makes it.
    link : int array, shape (messages,)
        Over which link it comes.
    """

    graph: Graph
    received: np.ndarray
    made_by: np.ndarray
    link: np.ndarray


def lanes_of(columns: Columns, graph: Graph, link: np.ndarray) -> Lanes:
    """The larger graph; made once for each columns.

    Parameters
    ----------
    columns, graph
        Of the schedule, wired as for buffered transfers.
    link : int array, shape (entries,)
        Over which link each entry's data comes; the number of links for none.
    """
    kept = columns.__dict__.get("_lanes")
    if kept is None:
        kept = columns.__dict__["_lanes"] = _lanes(columns, graph, link)
    return kept


def _lanes(columns: Columns, graph: Graph, link: np.ndarray) -> Lanes:
    nodes, maker = len(graph), makers(columns)
    received = np.flatnonzero(link < columns.stages - 1)
    made_by = maker[received]
    # One lane for each pair of sender and receiver; its messages in the sender's order.
    lane = columns.rank[made_by] * np.int64(columns.ranks) + columns.rank[received]
    order = np.lexsort((made_by, lane))
    received, made_by, lane = received[order], made_by[order], lane[order]
    begins = np.flatnonzero(np.append(True, lane[1:] != lane[:-1]))
    messages = nodes + np.arange(len(received))
    count = nodes + len(received)

    waits = [_moved(wait, nodes, count, len(received)) for wait in graph.waits]
    if len(received):
        before = np.append(count, messages[:-1])
        before[begins] = count
        waits[0][nodes:] = before
        waits[1][nodes:] = graph.node[made_by]
    # The second half of a pair has its own array of what it waits for.
    for which, mine in enumerate((~columns.second[received], columns.second[received]), 1):
        if mine.any():
            waits[which][graph.node[received[mine]]] = messages[mine]

    first = (
        np.concatenate([graph.first, nodes + begins[1:], [count]]) if len(received) else graph.first
    )
    return Lanes(Graph(first, np.arange(count), tuple(waits)), received, made_by, link[received])


def queued_delays(
    columns: Columns, graph: Graph, link: np.ndarray, comm: np.ndarray, duration: np.ndarray
) -> np.ndarray:
    """For every entry, how long after its maker's end its data arrives.

    Parameters
    ----------
    columns, graph, link
        As `lanes_of` has them.
    comm : float array, shape (links + 1,)
        For how long a message holds its lane.
    duration : float array, shape (nodes,)
        Of the ranks' own nodes.

    Returns
    -------
    float array, shape (entries,)
        0 where nothing is sent.
    """
    late = np.zeros(len(columns))
    lanes = lanes_of(columns, graph, link)
    if len(lanes.received):
        lasts = np.concatenate([duration, comm[lanes.link]])
        end = lanes.graph.order.finish(lasts, (None,) * len(lanes.graph.waits))
        late[lanes.received] = end[len(graph) :] - end[graph.node[lanes.made_by]]
    return late


def _moved(waits: np.ndarray, nodes: int, count: int, more: int) -> np.ndarray:
    """The same waits with room for more nodes; "nothing" is the new number of nodes."""
    return np.concatenate([np.where(waits == nodes, count, waits), np.full(more, count)])
