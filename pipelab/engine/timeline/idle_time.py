"""Why ranks idle: before their first backward, in steady state, after their last forward, or for the network."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelab.engine.schedules.columns import TRANSFERS, B, F, I

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.engine.timeline.timeline import Timeline


class Idle(NamedTuple):
    """Idle time of every rank, each an array of shape (ranks,); the four add up to makespan - busy.

    The part of a gap in which only a message is in transit is `network`, whenever it falls:
    all work that is waited for has ended. The rest is `warm_up` up to the rank's first backward,
    `cool_down` after its last forward, and `steady` between. Forward-only schedules warm up to
    their first action and cool down after their last.
    """

    warm_up: np.ndarray
    steady: np.ndarray
    cool_down: np.ndarray
    network: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """All idle time of every rank."""
        return self.warm_up + self.steady + self.cool_down + self.network

    def to_frame(self) -> "DataFrame":
        """One row per rank."""
        import pandas as pd

        return pd.DataFrame(
            {"rank": range(len(self.warm_up)), **self._asdict(), "total": self.total}
        )

    def _repr_html_(self) -> str:
        from pipelab.display import table

        return table(self.to_frame())


def idle(timeline: "Timeline") -> Idle:
    """Sort every gap before an action, and the one behind the last, by its cause."""
    graph, rank, ranks = timeline.graph, timeline.node_rank, timeline.schedule.ranks
    before = np.append(timeline.node_end, 0.0)[graph.waits[0]]
    gap = timeline.node_start - before
    network = timeline.node_start - _worked_until(timeline)
    kind = timeline.columns.kind[timeline.node_entry]
    moving = np.isin(kind, TRANSFERS)
    took = timeline.node_end - timeline.node_start
    first_backward, last_forward = _turning_points(timeline)
    early = timeline.node_start <= first_backward[rank]
    late = ~early & (before >= last_forward[rank])

    def by_rank(amount: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        return np.bincount(rank, np.where(chosen, amount, 0.0), ranks)

    always = np.ones(len(gap), bool)
    end = np.zeros(ranks)
    np.maximum.at(end, rank, timeline.node_end)
    return Idle(
        by_rank(gap - network, early),
        by_rank(gap - network, ~early & ~late),
        by_rank(gap - network, late) + timeline.makespan - end,
        by_rank(network, always) + by_rank(took, moving),  # sends and receives that hold the rank
    )


def _worked_until(timeline: "Timeline") -> np.ndarray:
    """For every node, when the last of all that it waits for ended, messages not counted."""
    known = np.append(timeline.node_end, 0.0)
    return np.maximum.reduce([known[waits] for waits in timeline.graph.waits])


def _turning_points(timeline: "Timeline") -> tuple[np.ndarray, np.ndarray]:
    """Start of every rank's first backward and end of its last forward."""
    columns = timeline.columns
    first, last = np.full(columns.ranks, np.inf), np.full(columns.ranks, -np.inf)
    turns = np.isin(columns.kind, (B, I)) if not columns.forward_only else columns.kind == F
    np.minimum.at(first, columns.rank[turns], timeline.start[turns])
    forward = columns.kind == F
    np.maximum.at(last, columns.rank[forward], timeline.end[forward])
    return first, last
