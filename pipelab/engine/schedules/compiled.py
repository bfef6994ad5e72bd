"""A schedule compiled once: an order in which every action comes after all it waits for.

Every rank is a queue; in each round every rank whose next action has all it waits for moves
on by one. Rounds are the levels of the dependency graph: the actions of one round do not wait
for each other, so that times are found a round at a time with numpy. If no rank can move and
work is left, the schedule is deadlocked, and the heads of the queues say why.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import repeat

import numpy as np

from pipelab.engine.schedules.columns import Columns
from pipelab.engine.schedules.dependencies import makers
from pipelab.engine.schedules.limits import check_grid
from pipelab.fields import given


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in the order of their ranks, and for every node what it waits for.

    Attributes
    ----------
    first : int array, shape (ranks + 1,)
        Rank r's nodes are those from first[r] to first[r + 1].
    node : int array, shape (entries,)
        The node of every entry of the schedule; the two parts of a pair share one.
    waits : tuple of int arrays, each shape (nodes,)
        The nodes waited for, one array per reason; the number of nodes means "nothing".
        The first array is the node before on the same rank.
    meant : tuple of int arrays, each shape (nodes,), or None
        For the first of these arrays, the entry whose result is needed, -1 for none: of a pair one
        half. None, or no more arrays, where the node as a whole is waited for.
    """

    first: np.ndarray
    node: np.ndarray
    waits: tuple[np.ndarray, ...]
    meant: tuple[np.ndarray | None, ...] = ()

    def __len__(self) -> int:
        return int(self.first[-1])

    def needed(self, which: int) -> np.ndarray | None:
        """The entries that array `which` of `waits` is about; None where whole nodes are waited for."""
        return self.meant[which] if which < len(self.meant) else None

    @cached_property
    def order(self) -> "Order":
        """The rounds; computed once, used for every set of costs."""
        return _rounds(self)


@dataclass(frozen=True, eq=False)
class Order:
    """Nodes on a grid: a row per round, a column per rank; where a rank waits, its cell is empty.

    Row 0 precedes the first round and is empty. Cells are numbered row by row, so that cell 0
    can mean "nothing": it ends at time 0.

    Attributes
    ----------
    shape : (rounds + 1, ranks)
    cell : int array, shape (nodes,)
        The cell of every node.
    stuck : int array, shape (ranks,)
        The node at which each rank is stuck, or -1 where it has finished.
    needs : tuple of int arrays, each of `shape`
        The cells that each cell waits for; the graph's `waits` but the first, which is the cell
        above.
    """

    shape: tuple[int, int]
    cell: np.ndarray
    stuck: np.ndarray
    needs: tuple[np.ndarray, ...]

    def finish(self, duration: np.ndarray, delays: tuple[np.ndarray | None, ...]) -> np.ndarray:
        """When every node ends, given how long it takes and how long after what it waits for it may start.

        Parameters
        ----------
        duration : float array, shape (nodes,)
        delays : one float array of shape (nodes,), or None for no delay, per array of the graph's
        `waits`

        Returns
        -------
        float array, shape (nodes,)
        """
        end = np.zeros(self.shape)
        ended, above, above_delay = end.ravel().take, end[0], self._spread(delays[0])
        # What arrives, row by row: which cells, and how much later than these end.
        arrivals = [
            zip(
                needs[1:],
                repeat(None) if delay is None else given(self._spread(delay))[1:],
                strict=False,
            )
            for needs, delay in zip(self.needs, delays[1:], strict=True)
        ]
        lag = repeat(None) if above_delay is None else above_delay[1:]
        # A handful of numpy calls per round is all that costs time here, hence no indexing by row.
        for row, took, late, *arrived in zip(
            end[1:], given(self._spread(duration))[1:], lag, *arrivals, strict=False
        ):
            ready = above if late is None else above + late
            for needs, delay in arrived:
                arrival = ended(needs)
                if delay is not None:
                    arrival += delay
                ready = np.maximum(ready, arrival, out=arrival)
            above = np.add(ready, took, out=row)
        return end.ravel()[self.cell]

    def _spread(self, values: np.ndarray | None) -> np.ndarray | None:
        """Values of nodes on the grid, 0 in empty cells: a waiting rank carries its last end on."""
        if values is None:
            return None
        grid = np.zeros(self.shape)
        grid.ravel()[self.cell] = values
        return grid


def entries_graph(columns: Columns) -> Graph:
    """Nodes of a schedule: what each rank ran before, and whose result is needed.

    A pair is one node that waits for what either part needs.
    """
    n = len(columns)
    second = columns.second
    node = np.cumsum(~second) - 1
    count = n - int(second.sum())
    first = np.concatenate([node, [count]])[columns.first]
    needs = makers(columns)
    needed = np.where(needs >= 0, node[needs], count)
    before = np.arange(count) - 1
    before[first[:-1][np.diff(first) > 0]] = count
    waits, meant = [before, needed[~second]], [None, needs[~second]]
    if second.any():
        other, entry = np.full(count, count), np.full(count, -1)
        other[node[second]], entry[node[second]] = needed[second], needs[second]
        waits.append(other)
        meant.append(entry)
    return Graph(first, node, tuple(waits), tuple(meant))


def _rounds(graph: Graph) -> Order:
    n, ranks = len(graph), len(graph.first) - 1
    check_grid(int(np.diff(graph.first).max()), ranks)
    # the first, one's own rank, holds by running in turn
    waits = [np.append(w, n) for w in graph.waits[1:]]
    done = np.zeros(n + 1, dtype=bool)
    done[n] = True
    head, stop = graph.first[:-1].copy(), graph.first[1:]
    head[head == stop] = n
    cell, column, start = np.zeros(n + 1, dtype=np.int64), np.arange(ranks), ranks
    while True:
        if start > 10_000_000:  # from a million cells on, garbage collection pays
            check_grid(start // ranks, ranks)
        ready = head < n
        for needed in waits:
            ready &= done.take(needed.take(head))
        run = head[ready]
        if not len(run):
            break
        done[run] = True
        cell[run] = start + column[ready]
        head += ready
        head[ready & (head == stop)] = n
        start += ranks
    shape = start // ranks, ranks
    needs = tuple(np.zeros(shape, dtype=np.int64) for _ in waits)
    for grid, needed in zip(needs, waits, strict=True):
        grid.ravel()[cell[:n]] = cell[needed[:n]]
        grid.ravel()[0] = 0
    return Order(shape, cell[:n], np.where(head < n, head, -1), needs)
