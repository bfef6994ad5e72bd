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

import numpy as np

from pipelab.engine.schedules.columns import Columns
from pipelab.engine.schedules.compiled import Graph
from pipelab.engine.schedules.dependencies import makers


def queued_delays(
    columns: Columns, graph: Graph, link: np.ndarray, comm: np.ndarray, duration: np.ndarray
) -> np.ndarray:
    """For every entry, how long after its maker's end its data arrives.

    Parameters
    ----------
    columns, graph
        Of the schedule, wired as for buffered transfers.
    link : int array, shape (entries,)
        Over which link each entry's data comes; the last index of `comm` for none.
    comm : float array, shape (links + 1,)
        For how long a message holds its lane.
    duration : float array, shape (nodes,)
        Of the ranks' own nodes.

    Returns
    -------
    float array, shape (entries,)
        0 where nothing is sent.
    """
    nodes, maker = len(graph), makers(columns)
    received = np.flatnonzero(link < len(comm) - 1)
    if not len(received):
        return np.zeros(len(columns))
    made_by = maker[received]
    # One lane for each pair of sender and receiver; its messages in the sender's order.
    lane = columns.rank[made_by] * np.int64(columns.ranks) + columns.rank[received]
    order = np.lexsort((made_by, lane))
    received, made_by, lane = received[order], made_by[order], lane[order]
    begins = np.flatnonzero(np.append(True, lane[1:] != lane[:-1]))
    messages = nodes + np.arange(len(received))
    count = nodes + len(received)

    message_of = np.full(len(columns), -1)
    message_of[received] = messages
    waits = [_moved(wait, nodes, count, len(received)) for wait in graph.waits]
    before = np.append(count, messages[:-1])
    before[begins] = count
    waits[0][nodes:] = before
    waits[1][nodes:] = graph.node[made_by]
    for entry in received.tolist():
        # The second half of a pair has its own array of what it waits for.
        which = 2 if columns.second[entry] else 1
        waits[which][graph.node[entry]] = message_of[entry]

    first = np.concatenate([graph.first, nodes + begins[1:], [count]])
    lanes = Graph(first, np.arange(count), tuple(waits))
    lasts = np.concatenate([duration, comm[link[received]]])
    end = lanes.order.finish(lasts, (None,) * len(waits))
    late = np.zeros(len(columns))
    late[received] = end[messages] - end[graph.node[made_by]]
    return late


def _moved(waits: np.ndarray, nodes: int, count: int, more: int) -> np.ndarray:
    """The same waits with room for more nodes; "nothing" is the new number of nodes."""
    return np.concatenate([np.where(waits == nodes, count, waits), np.full(more, count)])
