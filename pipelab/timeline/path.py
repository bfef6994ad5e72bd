"""What each action waited for last, and the chain of these from the end back to the start."""

import numpy as np

__all__ = ["binding", "critical_entries"]


def binding(timeline) -> tuple[np.ndarray, np.ndarray]:
    """For every node the node it waited for last (the number of nodes for none), and the delay added to that.

    Of several that end together, the one on the same rank is named.
    """
    graph, n = timeline.graph, len(timeline.graph)
    known = np.append(timeline.node_end, 0.0)
    latest, added, best = np.full(n, n), np.zeros(n), np.full(n, -1.0)
    for waits, delay in zip(graph.waits, timeline.delays, strict=True):
        late = np.zeros(n) if delay is None else delay
        arrival = np.where(waits < n, known[waits] + late, -1.0)
        better = arrival > best
        latest[better], added[better], best[better] = waits[better], late[better], arrival[better]
    return latest, added


def critical_entries(timeline) -> np.ndarray:
    """Entries of the critical path, first to last; it ends with the action that ends last."""
    latest, entry, n = binding(timeline)[0], timeline.node_entry, len(timeline.graph)
    node, path = int(np.argmax(timeline.node_end)), []
    while node < n:
        path.append(node)
        node = int(latest[node])
    return entry[np.array(path[::-1])]
