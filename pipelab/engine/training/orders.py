"""A schedule by name on any number of ranks: what it holds, and many of its placements simulated at once."""

from functools import cached_property, lru_cache

import numpy as np

from pipelab.engine.schedules import schedule as make_schedule
from pipelab.engine.schedules.by_name import RULES
from pipelab.engine.schedules.columns import B, F, I, W, columns_of
from pipelab.engine.timeline.activation_memory import held_counts
from pipelab.engine.timeline.graphs import incoming, wire
from pipelab.engine.timeline.queued import lanes_of
from pipelab.errors import InvalidValue, TooLarge
from pipelab.schedules import Schedule

TRAINED_BY = tuple(name for name in RULES if name != "Inference")


class Order:
    """One schedule on so many ranks.

    Attributes
    ----------
    schedule : Schedule
    chunks : int
        Stages per rank.
    split : bool
        Whether input and weight gradients are actions of their own.
    held : tuple of int arrays
        Per rank, as `held_counts` has them.
    window : tuple of int
        Per rank, most microbatches between forward and backward (of whole ranks).
    """

    def __init__(self, schedule: Schedule) -> None:
        columns = columns_of(schedule)
        self.schedule, self.chunks = schedule, columns.chunks
        self.split = columns.splits_backward
        self.held = held_counts(columns)
        self.window = tuple(int(held[:, 0].max()) for held in self.held)

    @cached_property
    def together(self) -> "Together":
        """The simulator of many placements."""
        return Together(self.schedule)


class Together:
    """Step times of many placements under one schedule, as `simulate` with queued transfers has them.

    The graph of what waits for what is the schedule's; its levels are computed one after the
    other, for all placements at once.
    """

    def __init__(self, schedule: Schedule) -> None:
        columns = self.columns = columns_of(schedule)
        graph = wire(columns, "queued").graph
        lanes = lanes_of(columns, graph, incoming(columns))
        whole, stages, own = lanes.graph, columns.stages, len(graph)
        # Rows of the table of durations: F, I, W and B of every stage, pairs, links, and nothing.
        block = np.zeros(9, dtype=np.int64)
        block[[F, I, W, B]] = np.arange(4)
        each = block[columns.kind] * stages + columns.stage
        first = np.flatnonzero(~columns.second)
        row = np.empty(len(whole), dtype=np.int64)
        row[:own] = each[first]
        paired = np.flatnonzero(columns.paired)
        self.pairs, which = np.unique(
            np.stack([each[paired], each[paired + 1]], axis=1), axis=0, return_inverse=True
        )
        row[graph.node[paired]] = 4 * stages + which.ravel()
        row[own:] = 4 * stages + len(self.pairs) + lanes.link
        order = whole.order
        level = order.cell // order.shape[1]
        by_level = np.argsort(level, kind="stable")
        place = np.empty(len(whole) + 1, dtype=np.int64)  # one more: "nothing", which ends at 0
        place[by_level], place[-1] = np.arange(len(whole)), len(whole)
        edges = np.flatnonzero(np.diff(level[by_level], prepend=-1, append=-1))
        self.levels = []
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            nodes = by_level[low:high]
            waits = [place[w[nodes]] for w in whole.waits]
            waits = [w for w in waits if (w < len(whole)).any()]
            self.levels.append((low, high, row[nodes], waits))
        self.count = len(whole)

    def makespans(self, times: np.ndarray, comm: np.ndarray) -> np.ndarray:
        """Of K placements, in seconds.

        Parameters
        ----------
        times : float array, shape (3, ranks, K)
            Forward, input gradient and weight gradient of whole ranks.
        comm : float array, shape (stages - 1, K)
            Of the message from each stage of the schedule to the next.
        """
        columns = self.columns
        forward, back, weight = times[:, columns.holder] / columns.held[columns.holder][:, None]
        # in the sequence of the blocks above: F, I, W, B
        table = np.concatenate([forward, back, weight, back + weight])
        table = np.concatenate([table, table[self.pairs[:, 0]] + table[self.pairs[:, 1]], comm])
        end = np.zeros((self.count + 1, times.shape[2]))
        for low, high, row, waits in self.levels:
            here = end[low:high]
            if waits:
                np.take(end, waits[0], axis=0, out=here, mode="clip")
                for more in waits[1:]:
                    np.maximum(here, end.take(more, axis=0), out=here)
            here += table[row]
        return end[:-1].max(axis=0)


@lru_cache(maxsize=256)
def order_of(name: str, ranks: int, microbatches: int) -> Order:
    """The published rule of this name; raises as `pl.schedule` does."""
    return Order(make_schedule(name, ranks, microbatches))


def orders_of(
    name: str, most: int, microbatches: int
) -> tuple[dict[int, Order], str, TooLarge | None]:
    """The rule on every number of ranks up to `most` on which it exists.

    And why not, where it does on none; and the refusal of those numbers of ranks on which it is too
    large.
    """
    found, why, larger = {}, "", None
    for ranks in range(1, most + 1):
        try:
            found[ranks] = order_of(name, ranks, microbatches)
        except InvalidValue as error:
            why = why or str(error)
        except TooLarge as error:
            larger = error
    return found, why, larger
