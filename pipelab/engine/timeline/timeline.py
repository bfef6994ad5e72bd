"""A timeline: a schedule with start and end of every action, and every measure taken from it."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipelab.engine.schedules.columns import TRANSFERS, Columns, columns_of
from pipelab.engine.schedules.compiled import Graph
from pipelab.engine.timeline.activation_memory import Steps, memory, peak_in_flight
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.critical_path import (
    Binding,
    binding,
    critical_entries,
    names_waited_for,
)
from pipelab.engine.timeline.idle_time import Idle, idle
from pipelab.schedules import Action, Schedule

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Timeline:
    """When everything happens; made by `pl.simulate`. Times are in the unit of the costs.

    Attributes
    ----------
    schedule : Schedule
        What was simulated; with messages as actions, where transfers are blocking.
    costs : StageCosts
        Of its stages and links.
    transfers : {"buffered", "queued", "rendezvous", "blocking"}
        As for `simulate`.
    synchronous_optimizer : bool
        As for `simulate`.
    node_start, node_end : arrays of float, shape (nodes,)
        When every node starts and ends; a node is an action or a pair.
    graph : Graph
        What waits for what (`pipelab.engine.schedules.compiled`).
    delays : tuple of arrays of float, shape (nodes,), or None
        For each array of the graph's `waits`, how long after what it waits for a node may start;
        None for at once.

    Examples
    --------
    >>> import pipelab as pl
    >>> costs = pl.StageCosts(forward=1, backward_input=1, backward_weight=1)
    >>> timeline = pl.simulate(pl.schedule("ZBH2", ranks=4, microbatches=8), costs)
    >>> timeline.makespan, timeline.span  # no bubble in the span, one of 3 in the makespan
    (27.0, 24.0)
    """

    schedule: Schedule
    costs: StageCosts
    transfers: str
    synchronous_optimizer: bool
    node_start: np.ndarray = field(repr=False)  # a node is an action or a pair
    node_end: np.ndarray = field(repr=False)
    graph: Graph = field(repr=False)
    delays: tuple = field(repr=False)

    @property
    def columns(self) -> Columns:
        """The schedule as arrays; see `pipelab.engine.schedules.columns.Columns`."""
        return columns_of(self.schedule)

    @cached_property
    def start(self) -> np.ndarray:
        """When every entry of the schedule starts; (n,) array of floats."""
        return self.node_start[self.graph.node]

    @cached_property
    def end(self) -> np.ndarray:
        """When every entry of the schedule ends; (n,) array of floats."""
        return self.node_end[self.graph.node]

    @cached_property
    def node_entry(self) -> np.ndarray:
        """The first entry of every node; (nodes,) array of ints."""
        return np.flatnonzero(~self.columns.second)

    @cached_property
    def node_works(self) -> np.ndarray:
        """True for nodes that compute; False for sends, receives and idle ticks; (nodes,) array of bools."""
        return self.columns.kind[self.node_entry] < TRANSFERS[0]

    @cached_property
    def node_rank(self) -> np.ndarray:
        """The rank of every node; (nodes,) array of ints."""
        return self.columns.rank[self.node_entry]

    @cached_property
    def busy(self) -> np.ndarray:
        """How long every rank computes, shape (ranks,); a pair counts once."""
        work = np.where(self.node_works, self.node_end - self.node_start, 0.0)
        return np.bincount(self.node_rank, work, self.schedule.ranks)

    @property
    def makespan(self) -> float:
        """From 0 to the end of the last action, the optimizer not counted."""
        return float(self.node_end.max())

    @cached_property
    def rank_spans(self) -> np.ndarray:
        """From the start of the first action to the end of the last, for every rank, shape (ranks,)."""
        works, ranks = self.node_works, self.schedule.ranks
        first, last = np.full(ranks, np.inf), np.zeros(ranks)
        np.minimum.at(first, self.node_rank[works], self.node_start[works])
        np.maximum.at(last, self.node_rank[works], self.node_end[works])
        return np.where(np.isfinite(first), last - first, 0.0)

    @property
    def span(self) -> float:
        """The longest of the ranks' spans: what a training step costs if no rank waits for all at its end."""
        return float(self.rank_spans.max())

    @property
    def ideal(self) -> float:
        """The work of the busiest rank: no order of its actions takes less. m·(F+B) on equal stages."""
        return float(self.busy.max())

    @property
    def bubble_fraction(self) -> float:
        """Idle share of all ranks' time: 1 - Σ busy / (ranks · makespan)."""
        return _ratio(
            self.makespan * self.schedule.ranks - self.busy.sum(),
            self.makespan * self.schedule.ranks,
        )

    @property
    def bubble_ratio(self) -> float:
        """Megatron's measure, bubble time over ideal time: (makespan - ideal) / ideal."""
        return _ratio(self.makespan - self.ideal, self.ideal)

    @property
    def zb_bubble_rate(self) -> float:
        """The Zero Bubble paper's measure, of a span and not of a makespan: (span - ideal) / span."""
        return _ratio(self.span - self.ideal, self.span)

    @property
    def optimizer_start(self) -> tuple[float, ...]:
        """When each rank's optimizer step starts: after its own last action, or after everybody's."""
        last = np.zeros(self.schedule.ranks)
        np.maximum.at(last, self.node_rank, self.node_end)
        return tuple(
            (np.full_like(last, self.makespan) if self.synchronous_optimizer else last).tolist()
        )

    @property
    def iteration_time(self) -> float:
        """From one training step to the next.

        With a synchronous optimizer all ranks start together: makespan + optimizer. Without, the
        next step's first forwards fill the end of this one, and the longest of span + optimizer
        counts.
        """
        return (self.makespan if self.synchronous_optimizer else self.span) + self.costs.optimizer

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per rank, most forwards (microbatches times chunks) whose backward has not ended."""
        return peak_in_flight(self.columns)

    @property
    def peak_memory(self) -> tuple[float, ...]:
        """Per rank, most memory held for activations at any time, in the unit of the costs.

        Raises
        ------
        InvalidValue
            The backward is split, and the costs do not say what a weight gradient needs
            (`weight_activation`).
        """
        return tuple(
            float(memory(self, rank).amount.max(initial=0.0)) for rank in range(self.schedule.ranks)
        )

    def memory(self, rank: int) -> Steps:
        """Memory held for activations over time.

        Parameters
        ----------
        rank : int
            From 0.

        Returns
        -------
        Steps
            `time` and `amount`, arrays of one shape; `amount[i]` is held from `time[i]` to `time[i
            + 1]`.

        Raises
        ------
        InvalidValue
            There is no such rank, or the backward is split and the costs do not say what a weight
            gradient needs (`weight_activation`).
        """
        return memory(self, rank)

    @cached_property
    def idle(self) -> Idle:
        """Idle time of every rank by its cause; see `pipelab.engine.timeline.idle_time.Idle`."""
        return idle(self)

    @cached_property
    def waited_for(self) -> np.ndarray:
        """The entry that each entry had to wait for last, -1 where it waited for nothing, shape (n,).

        Where its own rank was busy longest, that is the action before it on the same rank. Of a
        pair it is the half whose result was needed, and the forward where the rank was busy with
        both.
        """
        return self.binding.entry[self.graph.node]

    @cached_property
    def binding(self) -> Binding:
        """What every node waited for last; see `pipelab.engine.timeline.critical_path.Binding`."""
        return binding(self)

    @cached_property
    def critical_entries(self) -> np.ndarray:
        """Entries on the critical path, first to last; an array of ints."""
        return critical_entries(self)

    @property
    def critical_path(self) -> tuple[Action, ...]:
        """The chain of actions that decides the makespan: speed up none of them and nothing is gained."""
        return tuple(self.columns.action(i) for i in self.critical_entries)

    def to_frame(self) -> "DataFrame":
        """The actions as a table, one row each.

        Returns
        -------
        pandas.DataFrame
            Columns `rank`, `action`, `stage`, `kind`, `microbatch`, `start`, `end` (with the unit
            in their names, where the costs have one) and `waited_for`, the action as text.
        """
        frame = self.columns.to_frame().drop(columns="position")
        unit = f"_{self.costs.unit}" if self.costs.unit else ""
        frame["start" + unit], frame["end" + unit] = self.start, self.end
        frame["waited_for"] = names_waited_for(self, np.arange(len(self.columns)))
        return frame

    def measures(self) -> dict[str, float]:
        """The measures that must never be mixed up, by name.

        Returns
        -------
        dict of str to float
            `makespan`, `span` and `ideal` in the unit of the costs, and the shares
            `bubble_fraction`, `bubble_ratio` and `zb_bubble_rate`.
        """
        names = ("makespan", "span", "ideal", "bubble_fraction", "bubble_ratio", "zb_bubble_rate")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        measures = f"makespan {self.makespan:g}, bubble_fraction {self.bubble_fraction:.4f}"
        return f"<Timeline {self.schedule.name}: {measures}>"

    def _repr_html_(self) -> str:
        import pandas as pd

        from pipelab.display import table

        peak = ", ".join(map(str, self.peak_in_flight[:16])) + (
            " …" if self.schedule.ranks > 16 else ""
        )
        head = {"schedule": self.schedule.name, "ranks": self.schedule.ranks}
        return table(pd.DataFrame([{**head, **self.measures(), "peak_in_flight": peak}]))


def _ratio(part: float, whole: float) -> float:
    """0 where all costs are zero: nothing takes time, so nothing is idle."""
    return float(part / whole) if whole else 0.0
