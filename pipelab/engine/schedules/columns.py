"""A schedule as columns of numbers: what each rank runs, what waits for what, and what is wrong with it.

Equal to `pipelab.schedules.Schedule`, action by action: `columns_of` makes the columns of a
schedule once, and `Columns.schedule` is the schedule of columns, whose actions are made when
somebody asks for them.

A forward needs the forward of the stage before; a backward needs the backward of the stage after,
or on the last stage its own forward; a weight gradient needs its input gradient. So an action has
at most one maker on another rank. The graph of these needs is sorted once, by rounds: in each round
every rank whose next action has all it waits for runs it. The actions of one round do not wait for
each other, so their times are found together (`Graph.finish`), for one set of times or for many.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsInt

import numpy as np

from pipelab.errors import InvalidSchedule, TooLarge
from pipelab.fields import given
from pipelab.schedules import KINDS, Action, Schedule

if TYPE_CHECKING:
    from pandas import DataFrame

# The codes of KINDS.
F, I, B, W, IDLE = range(5)  # noqa: E741 (torch's symbol for the input gradient)

_MOST_DEFECTS = 1_000  # sentences that are written about one schedule
# What is listed and timed action by action must end within seconds and a few GB.
_MOST_ROUNDS = 1_000_000  # each costs some 15 µs, whatever it holds
_MOST_CELLS = 40_000_000  # of rounds times ranks


class Rounds(NamedTuple):
    """The nodes of a graph, sorted so that each comes after all it waits for.

    Attributes
    ----------
    number : int array, shape (nodes,)
        The round in which each node runs, from 1; 0 where it never does.
    stuck : int array, shape (ranks,)
        The node at which each rank is stuck, or -1 where it has finished.
    """

    number: np.ndarray
    stuck: np.ndarray


class _Steps(NamedTuple):
    """One round after the other: from which place to which, and where what they wait for is."""

    order: np.ndarray  # (nodes,) nodes by round
    place: np.ndarray  # (nodes,) of each node in that order
    rounds: list[tuple[int, int, list[tuple[int, np.ndarray]]]]


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
    def rounds(self) -> Rounds:
        """The round of every node; computed once, used for every set of costs.

        Raises
        ------
        TooLarge
        """
        n, ranks = len(self), len(self.first) - 1
        _check_size(int(np.diff(self.first).max()), ranks)
        # the first, one's own rank, holds by running in turn
        waits = [np.append(w, n) for w in self.waits[1:]]
        done = np.zeros(n + 1, dtype=bool)
        done[n] = True
        head, stop = self.first[:-1].copy(), self.first[1:]
        head[head == stop] = n
        number, now = np.zeros(n + 1, dtype=np.int64), 1
        while True:
            if now * ranks > 10_000_000:
                _check_size(now, ranks)
            ready = head < n
            for needed in waits:
                ready &= done.take(needed.take(head))
            run = head[ready]
            if not len(run):
                break
            done[run] = True
            number[run] = now
            head += ready
            head[ready & (head == stop)] = n
            now += 1
        return Rounds(number[:n], np.where(head < n, head, -1))

    @cached_property
    def _steps(self) -> _Steps:
        n, number = len(self), self.rounds.number
        order = np.argsort(number, kind="stable")
        # Behind the nodes: "nothing", and when each rank may begin.
        place = np.empty(n + 1, dtype=np.int64)
        place[order], place[n] = np.arange(n), n
        waits = [place[w[order]] for w in self.waits]
        begins = np.diff(self.first) > 0
        waits[0][place[self.first[:-1][begins]]] = n + 1 + np.flatnonzero(begins)
        edges = np.flatnonzero(np.diff(number[order], prepend=-1, append=-1))
        rounds = []
        for low, high in pairwise(edges.tolist()):
            here = [(i, w[low:high]) for i, w in enumerate(waits)]
            rounds.append((low, high, [(i, w) for i, w in here if i == 0 or (w != n).any()]))
        return _Steps(order, place[:n], rounds)

    def finish(
        self,
        took: np.ndarray,
        row: np.ndarray,
        delay: np.ndarray | None = None,
        link: Sequence[np.ndarray | None] = (),
        free: np.ndarray | None = None,
    ) -> np.ndarray:
        """When every node ends: the longest paths through the graph, for one set of times or for K.

        Parameters
        ----------
        took : float array, shape (rows,) or (rows, K)
            How long nodes take.
        row : int array, shape (nodes,)
            The row of each node.
        delay : float array, shape (links,) or (links, K), optional
            How long after what it waits for a node may start; without it, at once.
        link : one int array of shape (nodes,), or None, per array of `waits`
            The row of `delay` that counts; None for no delay.
        free : float array, shape (ranks,) or (ranks, K), optional
            When each rank may begin, -inf for long before; by default at 0.

        Returns
        -------
        float array, shape (nodes,) or (nodes, K)
        """
        return self._ended(took, row, delay, link, free)[self._steps.place]

    def makespan(self, took: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Return when the last node ends, shape () or (K,); the arguments are those of `finish`."""
        return self._ended(took, row)[: len(self)].max(axis=0)

    def _ended(
        self,
        took: np.ndarray,
        row: np.ndarray,
        delay: np.ndarray | None = None,
        link: Sequence[np.ndarray | None] = (),
        free: np.ndarray | None = None,
    ) -> np.ndarray:
        """As `finish`, in the order of the rounds."""
        n, steps = len(self), self._steps
        end = np.zeros((n + len(self.first), *took.shape[1:]))
        end[n] = -np.inf
        if free is not None:
            end[n + 1 :] = free
        row = row[steps.order]
        # All durations at once, unless K sets of them would fill the caches.
        work = took[row] if took.ndim == 1 else None
        late: list[np.ndarray | None] = [None] * len(self.waits)
        if delay is not None:
            late = [None if each is None else delay[each[steps.order]] for each in link]
        # A handful of numpy calls per round is all that costs time here.
        for low, high, waits in steps.rounds:
            ready = end[low:high]
            for i, source in waits:
                arrival = end.take(source, axis=0, out=None if i else ready, mode="clip")
                if (more := late[i]) is not None:
                    arrival += more[low:high]
                if i:
                    np.maximum(ready, arrival, out=ready)
            ready += took.take(row[low:high], axis=0) if work is None else work[low:high]
        return end


def _check_size(rounds: int, ranks: int) -> None:
    """Refuse what would take minutes or more memory than there is."""
    if rounds > _MOST_ROUNDS or rounds * ranks > _MOST_CELLS:
        expected = f"at most {_MOST_ROUNDS:,} and {_MOST_CELLS:,} cells are timed; take fewer microbatches or ranks"
        raise TooLarge(
            f"{rounds:,} rounds or more of actions on {ranks:,} ranks: {expected}",
            {"rounds": rounds, "ranks": ranks},
        )


class Work(NamedTuple):
    """Which row of a table of times (`Columns.times`) each node takes.

    Attributes
    ----------
    row : int array, shape (nodes,)
    pairs : int array, shape (P, 2)
        For each different pair, the rows of its parts.
    """

    row: np.ndarray
    pairs: np.ndarray


class Queues(NamedTuple):
    """The graph in which messages are nodes after the ranks' own.

    Between two ranks, each way, messages go one at a time, in the order in which the sender made
    them: a rank of its own, whose actions are messages.

        sending rank     … p ─┐   … q ─┐
        queue                 └▶ [p's message][q's message]
        receiving rank                        └▶ x …      └▶ y …

    Attributes
    ----------
    graph : Graph
    link : int array, shape (messages,)
        Over which link each message goes.
    """

    graph: Graph
    link: np.ndarray


@dataclass(frozen=True, eq=False)
class Columns:
    """All actions of a schedule, rank after rank; of a pair both halves, one after the other.

    Attributes
    ----------
    name, microbatches, stage_rank
        As the schedule has them.
    kind, stage, microbatch : arrays of int, shape (n,)
        `kind` holds codes.
    first : array of int, shape (ranks + 1,)
        Rank r's actions are those from first[r] to first[r + 1].
    paired : array of bool, shape (n,)
        True for a forward that runs at the same time as the backward listed next.
    """

    name: str
    microbatches: int
    stage_rank: tuple[int, ...]
    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    first: np.ndarray
    paired: np.ndarray

    def __post_init__(self) -> None:
        for name in ("kind", "stage", "microbatch", "first", "paired"):
            # What is compiled and checked once must not change afterwards.
            getattr(self, name).setflags(write=False)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def schedule(self) -> Schedule:
        """A schedule with these columns. Not kept here: two objects that hold each other are freed late."""
        return Schedule(self.name, self.microbatches, self.stage_rank, _Rows(self))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.first) - 1

    @property
    def stages(self) -> int:
        """Number of stages, over all ranks."""
        return len(self.stage_rank)

    @property
    def chunks(self) -> int:
        """The most stages that any rank holds."""
        return int(self.held.max())

    @cached_property
    def held(self) -> np.ndarray:
        """How many stages every rank holds, (ranks,) array of ints; 0 for a rank with nothing to do."""
        return np.bincount(self.holder, minlength=self.ranks)

    @cached_property
    def chunk(self) -> np.ndarray:
        """Which of its rank's stages every stage is, from 0; (stages,) array of ints."""
        order = np.argsort(self.holder, kind="stable")
        before = np.cumsum(self.held) - self.held
        chunk = np.empty(self.stages, dtype=np.int64)
        chunk[order] = np.arange(self.stages) - before[self.holder[order]]
        return chunk

    @cached_property
    def rank(self) -> np.ndarray:
        """The rank of every action; (n,) array of ints."""
        return np.repeat(np.arange(self.ranks), np.diff(self.first))

    @cached_property
    def holder(self) -> np.ndarray:
        """`stage_rank` as an array of ints, shape (stages,)."""
        return np.array(self.stage_rank)

    @cached_property
    def second(self) -> np.ndarray:
        """True for the backward of a pair; (n,) array of bools."""
        return np.concatenate([[False], self.paired[:-1]])

    @property
    def forward_only(self) -> bool:
        """True for inference: nothing runs backward."""
        return not np.any((self.kind > F) & (self.kind != IDLE))

    @property
    def splits_backward(self) -> bool:
        """True where some input and weight gradients are actions of their own."""
        return bool(np.isin(self.kind, (I, W)).any())

    def action(self, i: int) -> Action:
        """Entry i, without its partner, where it is half of a pair."""
        return Action(int(self.stage[i]), KINDS[self.kind[i]], int(self.microbatch[i]))

    def whole(self, i: int) -> Action:
        """Entry i, or the pair of which it is a half."""
        low = i - int(self.second[i])
        if self.paired[low]:
            return Action.pair(self.action(low), self.action(low + 1))
        return self.action(i)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Every entry as text, each half of a pair by itself; n of them."""
        kinds = [KINDS[code] for code in self.kind.tolist()]
        numbers = self.stage.tolist(), self.microbatch.tolist()
        return tuple(
            k if k == "IDLE" else f"{s}{k}{m}" for k, s, m in zip(kinds, *numbers, strict=True)
        )

    @cached_property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """Every rank's actions; a pair is one action with two parts."""
        kinds = [KINDS[code] for code in self.kind.tolist()]
        numbers = self.stage.tolist(), kinds, self.microbatch.tolist()
        single = list(map(Action, *numbers))
        for i in np.flatnonzero(self.paired).tolist():
            single[i] = Action.pair(single[i], single[i + 1])
        whole, begins = ~self.second, np.cumsum(~self.second)
        kept = [action for action, here in zip(single, whole.tolist(), strict=True) if here]
        first = np.concatenate([[0], begins])[self.first].tolist()
        return tuple(tuple(kept[low:high]) for low, high in pairwise(first))

    def to_frame(self) -> "DataFrame":
        """The entries as a table: rank, position, action, stage, kind and microbatch, -1 for none."""
        import pandas as pd

        return pd.DataFrame(
            {
                "rank": self.rank,
                "position": np.arange(len(self)) - self.first[self.rank],
                "action": self.texts,
                "stage": self.stage,
                "kind": np.array(KINDS)[self.kind],
                "microbatch": self.microbatch,
            }
        )

    def computing(self) -> "Columns":
        """Without idle ticks."""
        return self.select(self.kind != IDLE)

    def select(self, keep: np.ndarray) -> "Columns":
        """Some of the entries; `keep` is True for them, shape (n,)."""
        first = np.concatenate([[0], np.cumsum(keep)])[self.first]
        arrays = {
            name: getattr(self, name)[keep] for name in ("kind", "stage", "microbatch", "paired")
        }
        return replace(self, first=first, **arrays)

    def where(self, *kinds: int) -> np.ndarray:
        """Entry of the action of one of `kinds` for every stage and microbatch, (stages, microbatches); -1 for none."""
        table = np.full((self.stages, self.microbatches), -1, dtype=np.int64)
        chosen = np.flatnonzero(np.isin(self.kind, kinds))
        table[self.stage[chosen], self.microbatch[chosen]] = chosen
        return table

    @cached_property
    def makers(self) -> np.ndarray:
        """The entry whose result each entry needs, shape (n,); -1 for none."""
        waits = np.full(len(self) + 1, -1, dtype=np.int64)  # one cell more, for -1 to write into
        forward, backward = self.where(F), self.where(I, B)
        waits[forward[1:]] = forward[:-1]
        waits[backward[:-1]] = backward[1:]
        waits[backward[-1]] = forward[-1]
        if self.splits_backward:
            weight = self.where(W)
            waits[weight] = np.where(weight >= 0, backward, -1)
        return waits[:-1]

    @cached_property
    def links(self) -> np.ndarray:
        """The link over which what each entry needs arrives, shape (n,); the number of links for none.

        Link s joins the stages s and s + 1.
        """
        no_link = self.stages - 1
        link = np.full(len(self), no_link)
        forward, backward = self.kind == F, np.isin(self.kind, (B, I))
        link[forward] = self.stage[forward] - 1
        link[backward] = self.stage[backward]
        crossing = np.append(self.holder[1:] != self.holder[:-1], False)
        # stage 0's forward has link -1: the last cell, False
        return np.where(crossing[link], link, no_link)

    @cached_property
    def checked(self) -> tuple[tuple[str, ...], Graph | None]:
        """Why the schedule cannot be run, and if it can, its graph.

        A pair is one node that waits for what either part needs.
        """
        found = (
            _listed(_impossible(self))
            or _listed(_wrong_numbers(self))
            or _listed(_wrong_order(self))
        )
        if found:
            return found, None
        n, second = len(self), self.second
        node = np.cumsum(~second) - 1
        count = n - int(second.sum())
        first = np.concatenate([node, [count]])[self.first]
        before = np.arange(count) - 1
        before[first[:-1][np.diff(first) > 0]] = count
        needs = self.makers
        needed = np.where(needs >= 0, node[needs], count)
        waits = (before, *self.slots(needed, node, count))
        graph = Graph(first, node, waits, (None, *self.slots(needs, node, -1)))
        found = tuple(_blocked(self, graph))
        return found, None if found else graph

    @property
    def defects(self) -> tuple[str, ...]:
        """Why the schedule cannot be run; empty if it can."""
        return self.checked[0]

    @property
    def graph(self) -> Graph:
        """What waits for what.

        Raises
        ------
        InvalidSchedule
        """
        defects, graph = self.checked
        if graph is None:
            raise InvalidSchedule(defects, f"schedule {self.name!r}")
        return graph

    def slots(self, values: np.ndarray, node: np.ndarray, nothing: int) -> list[np.ndarray]:
        """Values of entries by node: an array for single entries and first halves of pairs, and one for second halves.

        The second array is there only if the schedule has pairs.
        """
        second = self.second
        found = [values[~second]]
        if second.any():
            other = np.full(len(found[0]), nothing)
            other[node[second]] = values[second]
            found.append(other)
        return found

    @cached_property
    def delayed_by(self) -> tuple[np.ndarray | None, ...]:
        """For each array of the graph's `waits`, the link that delays each node; the number of links for none."""
        return None, *self.slots(self.links, self.graph.node, self.stages - 1)

    @cached_property
    def queues(self) -> Queues:
        """The graph in which messages between two ranks go one at a time, as nodes of their own."""
        graph = self.graph
        nodes = len(graph)
        received = np.flatnonzero(self.links < self.stages - 1)
        made_by = self.makers[received]
        # One queue for each pair of sender and receiver; its messages in the sender's order.
        queue = self.rank[made_by] * np.int64(self.ranks) + self.rank[received]
        order = np.lexsort((made_by, queue))
        received, made_by, queue = received[order], made_by[order], queue[order]
        begins = np.flatnonzero(np.diff(queue, prepend=-1))
        count = nodes + len(received)
        messages = np.arange(nodes, count)
        waits = [
            np.concatenate([np.where(wait == nodes, count, wait), np.full(len(received), count)])
            for wait in graph.waits
        ]
        waits[0][nodes:] = messages - 1
        waits[0][nodes + begins] = count
        waits[1][nodes:] = graph.node[made_by]
        # The second half of a pair has its own array of what it waits for.
        for which, mine in enumerate((~self.second[received], self.second[received]), 1):
            if mine.any():
                waits[which][graph.node[received[mine]]] = messages[mine]
        first = np.concatenate([graph.first[:-1], nodes + begins, [count]])
        return Queues(Graph(first, np.arange(count), tuple(waits)), self.links[received])

    @cached_property
    def work(self) -> Work:
        """Which row of `times` each node of the graph takes."""
        entry = np.array([0, 1, 2, 3, 0])[self.kind] * np.int64(self.stages) + self.stage
        entry[self.kind == IDLE] = 4 * self.stages
        row, paired = entry[~self.second], np.flatnonzero(self.paired)
        pairs, which = np.unique(
            np.stack([entry[paired], entry[paired + 1]], axis=1), axis=0, return_inverse=True
        )
        row[self.graph.node[paired]] = 4 * self.stages + 1 + which.ravel()
        return Work(row, pairs)

    def times(self, times: np.ndarray, overlap: float = 1.0) -> np.ndarray:
        """How long everything takes that nodes do, by row: F, I, B and W of every stage, idle ticks, pairs.

        Parameters
        ----------
        times : float array, shape (3, stages) or (3, stages, K)
            Forward, input gradient and weight gradient of every stage.
        overlap : float
            What a pair takes, as a share of the sum of its parts.

        Returns
        -------
        float array, shape (rows,) or (rows, K)
        """
        forward, back, weight = times
        single = np.concatenate([forward, back, back + weight, weight])
        pairs = self.work.pairs
        together = (single[pairs[:, 0]] + single[pairs[:, 1]]) * overlap
        return np.concatenate([single, np.zeros_like(single[:1]), together])

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per rank, most forwards whose full backward or input gradient has not ended.

        A rank does one thing at a time, so that its order alone decides; a pair holds both of its
        parts. In a schedule without backwards nothing waits for one: a rank holds what it works on.
        """
        if self.forward_only:
            return tuple(int(n > 0) for n in np.diff(self.first))
        return tuple(int(held[:, 0].max(initial=0)) for held in self.held_counts)

    @cached_property
    def held_counts(self) -> tuple[np.ndarray, ...]:
        """Per rank, how much its order has it hold at the fullest moments, whatever the times.

        Returns
        -------
        tuple of int arrays, shape (n, 2)
            In chunks: forwards whose full backward or input gradient has not ended, and input
            gradients whose weight gradient has not. Of the pairs that occur those that no other
            exceeds in both; with a activations of a chunk, and w of these still held by its weight
            gradient, the peak of `Timeline.memory` is the largest i·a + j·w.
        """
        found, held = [], np.zeros((2 * len(self), 2), dtype=np.int64)
        # A forward counts before it runs, and what it leaves free after: two lines per entry.
        held[::2, 0] = self.kind == F
        held[1::2, 0] = -np.isin(self.kind, (B, I)).astype(np.int64)
        held[1::2, 1] = (self.kind == I).astype(np.int64) - (self.kind == W)
        for low, high in pairwise(self.first.tolist()):
            forwards, gradients = np.cumsum(held[2 * low : 2 * high], axis=0).T
            most = np.full(forwards.max(initial=0) + 2, -1)
            np.maximum.at(most, forwards, gradients)
            # more than is held with more forwards
            beyond = np.maximum.accumulate(most[::-1])[::-1]
            kept = np.flatnonzero(most[:-1] > beyond[1:])
            found.append(np.stack([kept, most[kept]], axis=1))
        return tuple(found)


class _Rows(Sequence):
    """The rows of columns: `Schedule.actions`, made when they are looked at."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return self.columns.ranks

    def __getitem__(self, rank: Any) -> Any:
        return self.columns.actions[rank]

    def __repr__(self) -> str:
        return repr(self.columns.actions)

    def __hash__(self) -> int:
        return hash(self.columns.actions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Rows):
            return self.columns.actions == other
        names = ("first", "kind", "stage", "microbatch", "paired")
        return all(
            np.array_equal(getattr(self.columns, name), getattr(other.columns, name))
            for name in names
        )


def columns_of(schedule: Schedule) -> Columns:
    """The columns of a schedule, made once: schedules do not change."""
    if isinstance(schedule.actions, _Rows):
        return schedule.actions.columns
    kept = schedule.__dict__.get("_columns")
    if kept is None:
        kept = schedule.__dict__["_columns"] = _made(schedule)
    return kept


def _made(schedule: Schedule) -> Columns:
    parts = [[a.parts or (a,) for a in row] for row in schedule.actions]
    single = [part for row in parts for each in row for part in each]
    code = {kind: i for i, kind in enumerate(KINDS)}
    paired = [len(each) > half + 1 for row in parts for each in row for half in range(len(each))]
    lengths = [sum(map(len, row)) for row in parts]
    return Columns(
        schedule.name,
        schedule.microbatches,
        schedule.stage_rank,
        np.array([code[part.kind] for part in single], np.int8),
        np.array([part.stage for part in single], np.int32),
        np.array([part.microbatch for part in single], np.int32),
        np.array([0, *np.cumsum(lengths)], np.int64),
        np.array(paired, bool),
    )


def _listed(found: Iterable[str]) -> tuple[str, ...]:
    """The first thousand defects, and a last sentence where there are more."""
    found = iter(found)
    first = tuple(islice(found, _MOST_DEFECTS))
    more = next(found, None) is not None
    return (*first, f"and more; the first {_MOST_DEFECTS:,} are listed") if more else first


def _impossible(columns: Columns) -> Iterator[str]:
    """Actions of stages or microbatches that do not exist, on a rank that does not hold the stage, or bad pairs."""
    working = columns.kind != IDLE
    holders = columns.holder
    if (holders >= columns.ranks).any():
        bad = int(np.flatnonzero(holders >= columns.ranks)[0])
        yield f"stage {bad} is on rank {holders[bad]}, but ranks are 0 to {columns.ranks - 1}"
        return
    inside = (columns.stage >= 0) & (columns.stage < columns.stages)
    for i in np.flatnonzero(working & ~inside):
        yield f"{_place(columns, i)}: stages are 0 to {columns.stages - 1}"
    known = (columns.microbatch >= 0) & (columns.microbatch < columns.microbatches)
    for i in np.flatnonzero(working & ~known):
        yield f"{_place(columns, i)}: microbatches are 0 to {columns.microbatches - 1}"
    holder = holders[np.where(inside, columns.stage, 0)]
    for i in np.flatnonzero(working & inside & (holder != columns.rank)):
        yield f"{_place(columns, i)}: stage {columns.stage[i]} is on rank {holder[i]}"
    for i in np.flatnonzero(columns.paired):
        partner = i + 1 < len(columns) and columns.rank[i + 1] == columns.rank[i]
        if not partner or (columns.kind[i], columns.kind[i + 1]) != (F, B):
            yield f"{_place(columns, i)}: a pair is a forward and a full backward"


def _wrong_numbers(columns: Columns) -> Iterator[str]:
    """Actions there twice or not at all: of every stage and microbatch one F, and one B or else one I and one W."""
    shape = columns.stages, columns.microbatches
    cell = columns.stage * np.int64(shape[1]) + columns.microbatch
    cells = shape[0] * shape[1]
    # most of a table would be empty: one high number is enough for that
    if cells > 10 * len(columns) + 1_000_000:
        yield _first_gap(columns, cell, cells)
        return
    code = np.where(columns.kind == IDLE, -1, columns.kind * np.int64(cells) + cell)
    count = np.bincount(code[code >= 0], minlength=IDLE * cells).reshape(IDLE, *shape)
    if (count > 1).any():
        yield from _doubled(columns, count, code)
    both = (count[B] > 0) & ((count[I] > 0) | (count[W] > 0))
    for stage, batch in np.argwhere(both):
        half = "I" if count[I, stage, batch] else "W"
        yield f"{stage}B{batch} and {stage}{half}{batch} do the same work; expected B, or I and W"
    wanted = {F: np.ones(shape, bool)}
    if not columns.forward_only:
        split = (count[I] > 0) | (count[W] > 0)
        wanted |= {B: ~split, I: split, W: split}
    for kind, mask in wanted.items():
        rank = columns.holder
        for stage, batch in np.argwhere(mask & (count[kind] == 0)):
            yield f"{stage}{KINDS[kind]}{batch} is missing on rank {rank[stage]}"


def _first_gap(columns: Columns, cell: np.ndarray, cells: int) -> str:
    there = np.unique(cell[columns.kind == F])
    gap = np.append(there, -1) != np.arange(len(there) + 1)
    stage, batch = divmod(int(np.argmax(gap)), columns.microbatches)
    counted = (
        f"{columns.stages:,} stages · {columns.microbatches:,} microbatches need {cells:,} forwards"
    )
    missing = f"{stage}F{batch} is missing on rank {columns.holder[stage]}"
    return f"{missing}: {counted} and there are {len(there):,}"


def _doubled(columns: Columns, count: np.ndarray, code: np.ndarray) -> Iterator[str]:
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    for flat in np.flatnonzero(count.ravel() > 1):
        kind, stage, batch = np.unravel_index(flat, count.shape)
        entries = order[slice(*np.searchsorted(ordered, [flat, flat + 1]))]
        places = ", ".join(_where(columns, i) for i in entries[:5]) + ", …" * (len(entries) > 5)
        yield f"{stage}{KINDS[kind]}{batch} is there {len(entries)} times, expected once ({places})"


def _wrong_order(columns: Columns) -> Iterator[str]:
    """Actions listed before what they need on their own rank."""
    pairs = [columns.makers]
    if not columns.forward_only:
        forward, backward = columns.where(F), columns.where(I, B)
        own = np.full(len(columns), -1)
        own[backward] = forward
        pairs.append(np.where(own == pairs[0], -1, own))  # on the last stage both are the same
    late = [
        (needs > np.arange(len(columns))) & (columns.rank[needs] == columns.rank) for needs in pairs
    ]
    for i in np.flatnonzero(np.logical_or.reduce(late)):
        for needs in (needs for needs, mask in zip(pairs, late, strict=True) if mask[i]):
            yield f"{_place(columns, i)} waits for {columns.action(needs[i])}, which comes later on the same rank"
    # The two parts of a pair run at the same time, so neither may need the other.
    for needs in pairs:
        for i in np.flatnonzero(columns.paired):
            if needs[i + 1] == i:
                yield f"{_place(columns, i)}: the backward of the pair waits for its own forward"


def _blocked(columns: Columns, graph: Graph) -> list[str]:
    """The circle of ranks that wait for each other, one sentence per edge; empty without a deadlock."""
    stuck = graph.rounds.stuck
    if (stuck < 0).all():
        return []
    ran = np.append(graph.rounds.number > 0, True)
    entry = np.unique(graph.node, return_index=True)[1]  # the first entry of every node
    rank, seen, edges = int(np.flatnonzero(stuck >= 0)[0]), [], []
    while rank not in seen:
        seen.append(rank)
        head = int(stuck[rank])
        which = next(i for i, waits in enumerate(graph.waits) if i and not ran[waits[head]])
        # Data comes from one half of a pair and goes to one half; a rank is busy with both.
        whole = columns.whole(int(entry[head]))
        waiting = f"{whole.parts[which - 1]} of {whole}" if whole.parts else str(whole)
        blocker = columns.action(int(given(graph.needed(which))[head]))
        node = int(graph.waits[which][head])
        other = int(columns.rank[entry[node]])
        ahead = int(stuck[other])
        behind = f", which comes after {columns.whole(int(entry[ahead]))}" if node != ahead else ""
        edges.append(f"{waiting} on rank {rank} waits for {blocker} on rank {other}{behind}")
        rank = other
    circle = edges[seen.index(rank) :]
    return [f"deadlock: {circle[0]}", *circle[1:]]


def _where(columns: Columns, i: int) -> str:
    rank = int(columns.rank[i])
    return f"rank {rank}, position {i - int(columns.first[rank])}"


def _place(columns: Columns, i: SupportsInt) -> str:
    return f"{columns.action(int(i))} ({_where(columns, int(i))})"
