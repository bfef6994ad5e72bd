"""What each action waited for last, and the chain of these from the end back to the start."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pipelab.engine.timeline.timeline import Timeline


class Binding(NamedTuple):
    """What every node waited for last, each an array of shape (nodes,).

    Attributes
    ----------
    node : int array
        The number of nodes means "nothing".
    entry : int array
        The entry that was meant, -1 for nothing: the half of a pair whose result was needed, or its
        forward, where its rank was busy with the pair as a whole.
    whole : bool array
        True where a rank was busy, False where data was needed.
    second : bool array
        True where it was the second half of a pair that had to wait.
    """

    node: np.ndarray
    entry: np.ndarray
    whole: np.ndarray
    second: np.ndarray


def binding(timeline: "Timeline") -> Binding:
    """For every node what it waited for last. Of several that end together, the one on the same rank is named."""
    graph, n = timeline.graph, len(timeline.graph)
    known, first = np.append(timeline.node_end, 0.0), np.append(timeline.node_entry, -1)
    node, which, best = np.full(n, n), np.zeros(n, dtype=np.int64), np.full(n, -1.0)
    for i, (waits, delay) in enumerate(zip(graph.waits, timeline.delays, strict=True)):
        arrival = np.where(waits < n, known[waits] + (0.0 if delay is None else delay), -1.0)
        better = arrival > best
        node[better], which[better], best[better] = waits[better], i, arrival[better]
    entry, whole, second = first[node], np.ones(n, bool), np.zeros(n, bool)
    for i in range(len(graph.waits)):
        needed = graph.needed(i)
        if needed is not None:
            mine = (which == i) & (node < n)
            entry[mine], whole[mine], second[mine] = needed[mine], False, i == 2
    return Binding(node, entry, whole, second)


def names_waited_for(timeline: "Timeline", entries: np.ndarray) -> list[str]:
    """What each of these entries waited for last, as text: "" for nothing, a pair where a rank was busy with one."""
    bound, columns, node = timeline.binding, timeline.columns, timeline.graph.node[entries]
    wanted = list(zip(bound.entry[node].tolist(), bound.whole[node].tolist(), strict=True))
    paired, texts = columns.paired.tolist(), columns.texts
    return [
        # a whole pair is its first half
        "" if i < 0 else str(columns.whole(i)) if whole and paired[i] else texts[i]
        for i, whole in wanted
    ]


def critical_entries(timeline: "Timeline") -> np.ndarray:
    """Entries of the critical path, first to last; it ends with the action that ends last.

    Of a pair, the half whose result is needed next; where nothing is but the rank, the half that
    had to wait.
    """
    bound, first, n = timeline.binding, timeline.node_entry, len(timeline.graph)
    node, needed, path = int(np.argmax(timeline.node_end)), -1, []
    while node < n:
        path.append(needed if needed >= 0 else int(first[node]) + int(bound.second[node]))
        needed = -1 if bound.whole[node] else int(bound.entry[node])
        node = int(bound.node[node])
    return np.array(path[::-1])
