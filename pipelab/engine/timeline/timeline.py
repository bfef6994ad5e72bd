"""A timeline: a schedule with start and end of every action, and every measure taken from it.

With buffered transfers `simulate` equals the definition, `pipelab.simulator.action_times`.

buffered  the sender goes on at once; the message arrives `comm` later
queued    the same, but messages from one rank to another go one at a time
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pipelab.display import DataFrame, data_frame, table
from pipelab.engine.schedules.columns import (
    IDLE,
    B,
    F,
    Graph,
    I,
    ScheduleArrays,
    W,
    a_schedule,
    columns_of,
    runnable,
)
from pipelab.engine.schedules.named_schedules import schedule as make_schedule
from pipelab.engine.timeline.costs import StageCosts
from pipelab.errors import InvalidValue, refuse_unknown
from pipelab.fields import Flag, Frozen, checked_value, derived, instance, whole_number
from pipelab.schedules import KINDS, Action, Schedule

TRANSFER_MODES = ("buffered", "queued")


class Steps(NamedTuple):
    """A step function: `amount[i]` from `time[i]` to `time[i + 1]`, which may be the same moment."""

    time: np.ndarray
    amount: np.ndarray


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

    def to_frame(self) -> DataFrame:
        """Return one row per rank."""
        return data_frame({"rank": range(len(self.warm_up)), **self._asdict(), "total": self.total})

    def _repr_html_(self) -> str:
        return table(self.to_frame())


class Messages(NamedTuple):
    """Every message between two ranks, each an array of shape (messages,).

    Attributes
    ----------
    maker, taker : int arrays
        Entries of the schedule: the action whose result is sent and the one that uses it.
    leaves, arrives : float arrays
        From the maker's end to the taker's start.
    """

    maker: np.ndarray
    taker: np.ndarray
    leaves: np.ndarray
    arrives: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline(Frozen):
    """When everything happens; made by `pl.simulate`. Times are in the unit of the costs.

    Attributes
    ----------
    schedule : Schedule
        What was simulated.
    costs : StageCosts
        Of its stages and links.
    transfers : {"buffered", "queued"}
        As for `simulate`.
    synchronous_optimizer : bool
        As for `simulate`.
    graph : Graph
        What waits for what (`pipelab.engine.schedules.columns`).
    ends : array of float, shape (nodes,)
        When every node of the graph ends: first the actions, a pair being one, then the messages.

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
    graph: Graph = field(repr=False)
    ends: np.ndarray = field(repr=False)

    @property
    def columns(self) -> ScheduleArrays:
        """The schedule as arrays; see `pipelab.engine.schedules.columns.ScheduleArrays`."""
        return columns_of(self.schedule)

    @derived
    def arrivals(self) -> tuple[np.ndarray, ...]:
        """Return for each array of the graph's `waits`, when what an action waits for is there; 0 for nothing."""
        known = np.append(self.ends, 0.0)
        return tuple(known[waits[: len(self.node_entry)]] for waits in self.graph.waits)

    @derived
    def node_start(self) -> np.ndarray:
        """Return when every action starts: as the last of what it waits for is there; shape (actions,)."""
        return np.maximum.reduce(self.arrivals)

    @property
    def node_end(self) -> np.ndarray:
        """When every action ends, shape (actions,)."""
        return self.ends[: len(self.node_entry)]

    @derived
    def start(self) -> np.ndarray:
        """Return when every entry of the schedule starts; (n,) array of floats."""
        return self.node_start[self.columns.node]

    @derived
    def end(self) -> np.ndarray:
        """Return when every entry of the schedule ends; (n,) array of floats."""
        return self.node_end[self.columns.node]

    @property
    def node_entry(self) -> np.ndarray:
        """The first entry of every action; (actions,) array of ints."""
        return self.columns.entry

    @derived
    def node_works(self) -> np.ndarray:
        """True for nodes that compute, False for idle ticks; (nodes,) array of bools."""
        return self.columns.kind[self.node_entry] != IDLE

    @derived
    def node_rank(self) -> np.ndarray:
        """Return the rank of every node; (nodes,) array of ints."""
        return self.columns.rank[self.node_entry]

    @derived
    def busy(self) -> np.ndarray:
        """Return how long every rank computes, shape (ranks,); a pair counts once."""
        work = np.where(self.node_works, self.node_end - self.node_start, 0.0)
        return np.bincount(self.node_rank, work, self.schedule.ranks)

    @property
    def makespan(self) -> float:
        """From 0 to the end of the last action, the optimizer not counted."""
        return float(self.node_end.max())

    @derived
    def rank_ends(self) -> np.ndarray:
        """Return when every rank has ended, 0 for a rank that does nothing; shape (ranks,)."""
        ends = np.zeros(self.schedule.ranks)
        np.maximum.at(ends, self.node_rank, self.node_end)
        return ends

    @derived
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
        whole = self.makespan * self.schedule.ranks
        return _ratio(whole - self.busy.sum(), whole)

    @property
    def bubble_ratio(self) -> float:
        """Megatron's measure, bubble time over ideal time: (makespan - ideal) / ideal."""
        return _ratio(self.makespan - self.ideal, self.ideal)

    @property
    def zb_bubble_rate(self) -> float:
        """The Zero Bubble paper's measure, of a span and not of a makespan: (span - ideal) / span."""
        return _ratio(self.span - self.ideal, self.span)

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
        return self.columns.peak_in_flight

    @property
    def peak_memory(self) -> tuple[float, ...]:
        """Per rank, most memory held for activations at any time, in the unit of the costs.

        Raises
        ------
        InvalidValue
            The backward is split, and the costs do not say what a weight gradient needs
            (`weight_activation`).
        """
        held = (self.memory(rank).amount for rank in range(self.schedule.ranks))
        return tuple(float(amount.max(initial=0.0)) for amount in held)

    def memory(self, rank: int) -> Steps:
        """Return the memory held for activations over time: from a forward's start to the end of its backward.

        An input gradient leaves `weight_activation` behind until the weight gradient ends. Without
        backwards (inference), a forward's activations go as it ends.

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
        columns = self.columns
        rank = whole_number("memory", "rank", rank, 0, columns.ranks - 1)
        mine = slice(columns.first[rank], columns.first[rank + 1])
        kind, stage, node = columns.kind[mine], columns.stage[mine], columns.node[mine]
        table = self.costs.tables(self.schedule)
        full, rest = table["activation"][stage], np.zeros(len(stage))
        if columns.splits_backward:
            if self.costs.weight_activation is None:
                needed = "what its weight gradient still needs of a microbatch's activations"
                such_as = "such as StageCosts(…, weight_activation=32 / 34)"
                expected = f"{columns.name} splits its backward: expected {needed}, {such_as}"
                raise InvalidValue("memory", [("weight_activation", None, expected)])
            rest = table["weight_activation"][stage]
        taken, backward = kind == F, (kind == B) | (kind == I) | (kind == W)
        freed = np.select([kind == I, kind == W], [full - rest, rest], full)
        at_end = taken if columns.forward_only else backward
        # In the order of the rank, which does one thing at a time: each node takes as it starts and
        # frees as it ends.
        place = np.append(2 * node[taken], 2 * node[at_end] + 1)
        order = np.argsort(place, kind="stable")
        time = np.append(self.start[mine][taken], self.end[mine][at_end])
        return _stepped(time[order], np.append(full[taken], -freed[at_end])[order])

    @derived
    def idle(self) -> Idle:
        """Return the idle time of every rank by its cause: every gap before an action, and the one behind the last."""
        rank, ranks, kind = self.node_rank, self.schedule.ranks, self.columns.kind
        known = np.append(self.end, 0.0)
        before, *others = (known[entry] for entry in self.graph.meant)
        gap = self.node_start - before
        # When the last of all that is waited for ended, messages not counted.
        network = self.node_start - np.maximum.reduce([before, *others])
        first_backward, last_forward = np.full(ranks, np.inf), np.full(ranks, -np.inf)
        turns = kind == F if self.columns.forward_only else np.isin(kind, (B, I))
        np.minimum.at(first_backward, self.columns.rank[turns], self.start[turns])
        np.maximum.at(last_forward, self.columns.rank[kind == F], self.end[kind == F])
        early = self.node_start <= first_backward[rank]
        late = ~early & (before >= last_forward[rank])

        def by_rank(chosen: np.ndarray, amount: np.ndarray) -> np.ndarray:
            return np.bincount(rank, np.where(chosen, amount, 0.0), ranks)

        return Idle(
            warm_up=by_rank(early, gap - network),
            steady=by_rank(~early & ~late, gap - network),
            cool_down=by_rank(late, gap - network) + self.makespan - self.rank_ends,
            network=np.bincount(rank, network, ranks),
        )

    @derived
    def waited_for(self) -> np.ndarray:
        """Return the entry that each entry had to wait for last, -1 where it waited for nothing, shape (n,).

        Where its own rank was busy longest, that is the action before it on the same rank. Of a
        pair it is the half whose result was needed, and the forward where the rank was busy with
        both.
        """
        return self._last[1][self.columns.node]

    @derived
    def _last(self) -> tuple[np.ndarray, np.ndarray]:
        """Return for every action which array of the graph's `waits` names what ended last, and the entry meant there.

        The entry is -1 for nothing. Of several that end together, the one on the same rank is named.
        """
        which, entry, best = (np.full(len(self.node_entry), x) for x in (0, -1, -1.0))
        for i, (meant, arrival) in enumerate(zip(self.graph.meant, self.arrivals, strict=True)):
            better = (meant >= 0) & (arrival > best)
            which[better], entry[better], best[better] = i, meant[better], arrival[better]
        return which, entry

    def names_waited_for(self, entries: np.ndarray) -> list[str]:
        """Return what each of these entries waited for last, as text.

        Parameters
        ----------
        entries : int array
            As the rows of `columns` number them.

        Returns
        -------
        list of str
            Empty for nothing; a pair where a rank was busy with one.
        """
        columns, node = self.columns, self.columns.node[entries]
        wanted = zip(*(each[node].tolist() for each in self._last), strict=True)
        paired, texts = columns.paired.tolist(), columns.texts
        return [
            # a whole pair is its first half
            "" if i < 0 else str(columns.whole(i)) if which == 0 and paired[i] else texts[i]
            for which, i in wanted
        ]

    @property
    def messages(self) -> Messages:
        """All messages between two ranks, in the order of their takers."""
        columns = self.columns
        taker = np.flatnonzero(columns.links < columns.stages - 1)
        maker = columns.makers[taker]
        return Messages(maker=maker, taker=taker, leaves=self.end[maker], arrives=self.start[taker])

    @derived
    def critical_entries(self) -> np.ndarray:
        """Return entries on the critical path, first to last; it ends with the action that ends last.

        Of a pair, the half whose result is needed next; where nothing is but the rank, the half that
        had to wait.
        """
        (which, entry), columns = self._last, self.columns
        node, needed, path = int(np.argmax(self.node_end)), -1, []
        while True:
            first = int(self.node_entry[node])
            late = int(columns.paired[first] and which[node] == 2)
            path.append(needed if needed >= 0 else first + late)
            before = int(entry[node])
            if before < 0:
                return np.array(path[::-1])
            node, needed = int(columns.node[before]), before if which[node] else -1

    @property
    def critical_path(self) -> tuple[Action, ...]:
        """The chain of actions that decides the makespan: speed up none of them and nothing is gained."""
        return tuple(self.columns.action(i) for i in self.critical_entries)

    def to_frame(self) -> DataFrame:
        """Return the actions as a table, one row each.

        Returns
        -------
        pandas.DataFrame
            Columns `rank`, `action`, `stage`, `kind`, `microbatch`, `start`, `end` (with the unit
            in their names, where the costs have one) and `waited_for`, the action as text.
        """
        columns, unit = self.columns, f"_{self.costs.unit}" if self.costs.unit else ""
        shown = {
            "rank": columns.rank,
            "action": columns.texts,
            "stage": columns.stage,
            "kind": np.array(KINDS)[columns.kind],
            "microbatch": columns.microbatch,
            "start" + unit: self.start,
            "end" + unit: self.end,
            "waited_for": self.names_waited_for(np.arange(len(columns))),
        }
        return data_frame(shown)

    def measures(self) -> dict[str, float]:
        """Return the measures that must never be mixed up, by name.

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
        more = " …" if self.schedule.ranks > 16 else ""
        peak = ", ".join(map(str, self.peak_in_flight[:16])) + more
        head = {"schedule": self.schedule.name, "ranks": self.schedule.ranks}
        return table(data_frame([{**head, **self.measures(), "peak_in_flight": peak}]))


def _ratio(part: float, whole: float) -> float:
    """Divide; 0 where all costs are zero: nothing takes time, so nothing is idle."""
    return float(part / whole) if whole else 0.0


def _stepped(time: np.ndarray, change: np.ndarray) -> Steps:
    """Return one step per moment, and one of no length before it where more was held for that moment alone."""
    amount = np.cumsum(change)
    if not len(time):
        return Steps(np.zeros(1), np.zeros(1))
    begins = np.flatnonzero(np.append(True, time[1:] != time[:-1]))
    last = amount[np.append(begins[1:], len(time)) - 1]
    most, before = np.maximum.reduceat(amount, begins), np.append(0.0, last[:-1])
    shown = np.stack([most > np.maximum(before, last), np.ones(len(last), bool)], axis=1).ravel()
    times, amounts = np.repeat(time[begins], 2), np.stack([most, last], axis=1).ravel()
    return Steps(np.append(0.0, times[shown]), np.append(0.0, amounts[shown]))


def simulate(
    schedule: Schedule,
    costs: StageCosts,
    *,
    transfers: str = "buffered",
    synchronous_optimizer: bool = True,
) -> Timeline:
    """Compute the times of every action: each starts as soon as its rank is free and its data is there.

    Parameters
    ----------
    schedule : Schedule
        Checked first, and compiled once: the same schedule with other costs takes a fraction of the
        time.
    costs : StageCosts
        Of the schedule's stages and links; of whole ranks, `costs.cut_for(schedule)` makes them.
    transfers : {"buffered", "queued"}
        `"buffered"`: a rank sends and goes on at once, and messages never wait for one another.
        `"queued"`: the same, but what one rank sends another goes one message at a time.
    synchronous_optimizer : bool
        Whether every rank's optimizer step waits for the last rank (for a global gradient norm,
        say).

    Returns
    -------
    Timeline
        Start and end of every action, in the unit of the costs, and the measures taken from them.

    Raises
    ------
    InvalidSchedule
        The schedule cannot be run; names the action, or the edges of the deadlock.
    InvalidValue
        The costs do not fit the schedule, or an argument is not valid.
    UnknownName
        `transfers` is unknown.
    TooLarge
        More than a million rounds of actions, or 40 million cells of rounds times ranks.

    Examples
    --------
    >>> import pipelab as pl
    >>> schedule = pl.schedule("1F1B", ranks=4, microbatches=8)
    >>> timeline = pl.simulate(schedule, pl.StageCosts(forward=1, backward_input=1, backward_weight=1))
    >>> timeline.makespan, round(timeline.bubble_fraction, 4), timeline.peak_in_flight
    (33.0, 0.2727, (4, 3, 2, 1))
    """
    a_schedule("simulate", schedule)
    instance("simulate", "costs", costs, StageCosts, "StageCosts(forward, backward_input, ...)")
    waits = checked_value("simulate", "synchronous_optimizer", synchronous_optimizer, Flag)
    refuse_unknown("transfer mode", transfers, TRANSFER_MODES)
    took, graph = costs.times(schedule), runnable(schedule).graph
    ends = graph.finish(took, queued=transfers == "queued")
    return Timeline(
        schedule=schedule,
        costs=costs,
        transfers=transfers,
        synchronous_optimizer=waits,
        graph=graph,
        ends=ends,
    )


def simulate_in_flight(
    costs: StageCosts, microbatches: int, in_flight: int, leaving: float = 0.0
) -> Timeline:
    """Simulate passes of microbatches through lanes of which at most `in_flight` are in flight at any time.

    Lanes (stages and links) work on one microbatch at a time, in order. With n in flight,
    microbatch q waits at the first lane until microbatch q - n has left the last. In decode that is
    the same microbatch, whose next token can only start once its last one is known: n of them go
    round in a closed loop. In prefill they are n places of an open stream.

    A lane may be free for the next microbatch before the last one is through: its GPUs take turns
    (`pipelab.costs`), or the message is still on the wire. Such a wait (`StageCosts.comm`, and
    `leaving` behind the last lane) delays the microbatch and keeps no other one from the lane.

    Parameters
    ----------
    costs : StageCosts
        `forward` holds one time per lane; links are lanes of their own.
        `comm` is what passes between a lane's end and the next one's start.
    microbatches : int
        Passes in all; in decode pass q is token q // in_flight of microbatch q mod in_flight.
    in_flight : int
    leaving : float
        From the end of the last lane to the moment a microbatch has left.

    Returns
    -------
    Timeline
        `waited_for` shows where a pass waited for another one to leave.

    Raises
    ------
    InvalidValue, TooLarge
        A count is not a positive whole number, or there are more than 5 million forwards.

    Examples
    --------
    >>> from pipelab.engine.timeline.timeline import simulate_in_flight
    >>> costs = StageCosts((1, 1, 1))
    >>> [simulate_in_flight(costs, microbatches=6, in_flight=n).makespan for n in (1, 2, 3)]
    [18.0, 10.0, 8.0]
    """
    in_flight = whole_number("simulate_in_flight", "in_flight", in_flight)
    lanes = np.size(costs.forward)
    schedule = make_schedule("Inference", lanes, microbatches)
    took, graph = costs.times(schedule), columns_of(schedule).graph
    # Node lane · microbatches + q is pass q on that lane. Behind the lanes and their messages come the
    # passes on their way out, for each of which another one waits at the first lane.
    total, passes = len(graph), lanes * microbatches
    out = np.arange(max(0, microbatches - in_flight))
    count, left = total + len(out), passes - microbatches + out
    before, made_by = (np.where(waits == total, count, waits) for waits in graph.waits)
    room, meant = np.full(count, count), np.full(passes, -1)
    room[in_flight:microbatches], meant[in_flight:microbatches] = total + out, left
    waits = (np.append(before, np.full(len(out), count)), np.append(made_by, left), room)
    row = np.append(graph.row, np.full(len(out), len(took)))
    loop = Graph(first=graph.first, waits=waits, meant=(*graph.meant, meant), row=row)
    ends = loop.finish(np.append(took, [leaving, 0.0]))
    return Timeline(
        schedule=schedule,
        costs=costs,
        transfers="buffered",
        synchronous_optimizer=True,
        graph=loop,
        ends=ends,
    )
