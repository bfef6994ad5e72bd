"""A schedule as columns of numbers: what each rank runs, what waits for what, and what is wrong with it.

Equal to `pipelab.schedules.Schedule`, action by action: `columns_of` makes the columns of a
schedule once, and `ScheduleArrays.schedule` is the schedule of columns, whose actions are made when
somebody asks for them.

A forward needs the forward of the stage before; a backward needs the backward of the stage after,
or on the last stage its own forward; a weight gradient needs its input gradient. So an action has
at most one maker, and if that is on another rank, a message. The graph of these needs is sorted once,
by rounds: in each round every rank whose next action has all it waits for runs it. The nodes of one
round do not wait for each other, so their times are found together (`Graph.finish`), for one set of
times or for many.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, SupportsInt

import numpy as np

from pipelab.errors import InvalidSchedule, TooLarge
from pipelab.fields import Frozen, derived, instance
from pipelab.schedules import KINDS, Action, Schedule

# The codes of KINDS.
F, I, B, W, IDLE = range(5)  # noqa: E741 (torch's symbol for the input gradient)

_OF_ENTRIES = ("kind", "stage", "microbatch", "paired")
_MOST_DEFECTS = 1_000  # sentences that are written about one schedule
# What is listed and timed action by action must end within seconds and a few GB.
_MOST_ROUNDS = 1_000_000  # each costs some 15 µs, whatever it holds
_MOST_CELLS = 40_000_000  # of rounds times ranks


class _Rounds(NamedTuple):
    """The nodes by round, and for each round what its nodes wait for."""

    row: np.ndarray  # (nodes,) by round
    place: np.ndarray  # (nodes,) of each node there
    rounds: list[tuple[int, int, np.ndarray, list[tuple[int, np.ndarray]]]]
    late: list[np.ndarray]  # for each reason but the first, the row of the message; by round


@dataclass(frozen=True, eq=False)
class Graph(Frozen):
    """Actions in the order of their ranks, messages behind them, and what each waits for.

    Between two ranks, each way, messages have a line of their own, on which they stand in the order in
    which the sender made them. Where transfers are queued, each waits for the one before.

        sending rank     … p ─┐   … q ─┐
        line                  └▶ [p's message][q's message]
        receiving rank                        └▶ x …      └▶ y …

    Attributes
    ----------
    first : int array, shape (ranks + 1,)
        Rank r's nodes are those from first[r] to first[r + 1]; a pair is one node.
    waits : tuple of int arrays, each shape (nodes,)
        The nodes waited for, one array per reason; the number of nodes means "nothing". The first
        array is the node before on the same rank or line; the second half of a pair has an array of
        its own.
    meant : tuple of int arrays, each shape (actions,)
        For each of these arrays, the entry of the schedule whose end is waited for, -1 for none: of a
        pair the half whose result is needed, and the first where the rank was busy with both.
    row : int array, shape (nodes,)
        Which row of a table of times (`ScheduleArrays.times`) each node takes; -1, the last, takes none.
    """

    first: np.ndarray
    waits: tuple[np.ndarray, ...]
    meant: tuple[np.ndarray, ...]
    row: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    @property
    def actions(self) -> int:
        """How many nodes are actions; those behind are messages."""
        return int(self.first[-1])

    @derived
    def makers(self) -> list[np.ndarray]:
        """Return for each array of `waits` but the first, the action whose result each action needs."""
        made_by, n = np.append(self.waits[1], len(self)), self.actions
        return [np.where(w < n, w, made_by[w]) for w in (waits[:n] for waits in self.waits[1:])]

    @derived
    def rounds(self) -> np.ndarray:
        """Return the round in which each action runs, from 1; 0 where it never does.

        Raises
        ------
        TooLarge
        """
        n, ranks = self.actions, len(self.first) - 1
        _check_size(int(np.diff(self.first).max()), ranks)
        makers = [np.append(np.minimum(needed, n), n) for needed in self.makers]
        done = np.zeros(n + 1, dtype=bool)
        done[n] = True
        head, stop = self.first[:-1].copy(), self.first[1:]
        head[head == stop] = n
        number, now = np.zeros(n + 1, dtype=np.int64), 1
        while True:
            if now * ranks > 10_000_000:
                _check_size(now, ranks)
            ready = head < n
            for needed in makers:
                ready &= done.take(needed.take(head))
            run = head[ready]
            if not len(run):
                return number[:n]
            done[run] = True
            number[run] = now
            head += ready
            head[ready & (head == stop)] = n
            now += 1

    @cached_property
    def _buffered(self) -> _Rounds:
        """Without nodes for messages: an action waits for its maker, and so much longer."""
        row, n = np.append(self.row, -1), self.actions
        late = [np.where(waits[:n] < n, -1, row[waits[:n]]) for waits in self.waits[1:]]
        return self._steps(self.rounds, [self.waits[0][:n], *self.makers], late)

    @cached_property
    def _queued(self) -> _Rounds:
        before, made_by = (waits[self.actions :] for waits in self.waits[:2])
        # Both halves of a pair may send over one line, the second after the first.
        second = np.append(self.waits[1], len(self))[before] == made_by
        number = np.append(3 * self.rounds, 3 * self.rounds[made_by] + 1 + second)
        steps = self._steps(number, self.waits, [])
        # The fewest rounds: as many as nodes on the longest path.
        path = self._ended(np.ones(self.row.max() + 2), steps)[steps.place]
        return self._steps(path.astype(np.int64), self.waits, [])

    def _steps(
        self, number: np.ndarray, waits: Sequence[np.ndarray], late: list[np.ndarray]
    ) -> _Rounds:
        n, order = len(number), np.argsort(number, kind="stable")
        # Behind the nodes: "nothing", and when each rank may begin.
        place = np.empty(n + 1, dtype=np.int64)
        place[order], place[n] = np.arange(n), n
        sources = [place[np.minimum(each, n)[order]] for each in waits]
        begins = np.flatnonzero(np.diff(self.first))
        sources[0][place[self.first[begins]]] = n + 1 + begins
        rounds, edges = [], np.flatnonzero(np.diff(number[order], prepend=-1, append=-1))
        for low, high in pairwise(edges.tolist()):
            own, *others = (source[low:high] for source in sources)
            needed = [(i, source) for i, source in enumerate(others) if (source != n).any()]
            rounds.append((low, high, own, needed))
        row, late = self.row[order], [each[order] for each in late]
        return _Rounds(row=row, place=place[:n], rounds=rounds, late=late)

    def finish(
        self, took: np.ndarray, queued: bool = False, free: np.ndarray | None = None
    ) -> np.ndarray:
        """Return when every node ends: the longest paths through the graph, for one set of times or for K.

        Parameters
        ----------
        took : float array, shape (rows,) or (rows, K)
            How long nodes take, by row.
        queued : bool
            Whether each message waits for the one before on its line.
        free : float array, shape (ranks,) or (ranks, K), optional
            When each rank may begin, -inf for long before; by default at 0.

        Returns
        -------
        float array, shape (nodes,) or (nodes, K)
        """
        steps = self._queued if queued else self._buffered
        ends = self._ended(took, steps, free)[steps.place]
        if queued:
            return ends
        messages = slice(self.actions, None)
        return np.concatenate([ends, ends[self.waits[1][messages]] + took[self.row[messages]]])

    def makespan(self, took: np.ndarray) -> np.ndarray:
        """Return when the last node ends with queued transfers, shape () or (K,)."""
        return self._ended(took, self._queued)[: len(self)].max(axis=0)

    def _ended(
        self, took: np.ndarray, steps: _Rounds, free: np.ndarray | None = None
    ) -> np.ndarray:
        """Compute what `finish` does, by round."""
        n, row = len(steps.row), steps.row
        end = np.zeros((n + len(self.first), *took.shape[1:]))
        end[n] = -np.inf
        if free is not None:
            end[n + 1 :] = free
        # All durations at once, unless K sets of them would fill the caches.
        work = took[row] if took.ndim == 1 else None
        late = [took[each] for each in steps.late]
        # A handful of numpy calls per round is all that costs time here.
        for low, high, own, others in steps.rounds:
            ready = end[low:high]
            end.take(own, axis=0, out=ready, mode="clip")
            for i, source in others:
                arrival = end.take(source, axis=0)
                if late:
                    arrival += late[i][low:high]
                np.maximum(ready, arrival, out=ready)
            ready += took.take(row[low:high], axis=0) if work is None else work[low:high]
        return end


def _check_size(rounds: int, ranks: int) -> None:
    """Refuse what would take minutes or more memory than there is."""
    if rounds > _MOST_ROUNDS or rounds * ranks > _MOST_CELLS:
        expected = f"at most {_MOST_ROUNDS:,} and {_MOST_CELLS:,} cells are timed; take fewer microbatches or ranks"
        raise TooLarge(f"{rounds:,} rounds or more of actions on {ranks:,} ranks: {expected}")


@dataclass(frozen=True, eq=False)
class ScheduleArrays(Frozen):
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

    @derived
    def held(self) -> np.ndarray:
        """Return how many stages every rank holds, (ranks,) array of ints; 0 for a rank with nothing to do."""
        return np.bincount(self.holder, minlength=self.ranks)

    @derived
    def chunk(self) -> np.ndarray:
        """Return which of its rank's stages every stage is, from 0; (stages,) array of ints."""
        order = np.argsort(self.holder, kind="stable")
        before = np.cumsum(self.held) - self.held
        chunk = np.empty(self.stages, dtype=np.int64)
        chunk[order] = np.arange(self.stages) - before[self.holder[order]]
        return chunk

    def part_layers(self, layers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return how many layers every stage has, shape (…, stages), where ranks have so many, shape (…, ranks).

        A rank's are dealt out as equally as whole layers are, the larger numbers first. Stages have the
        model's layers in their own sequence: so embedding and head lie with the first and the last stage.
        """
        of_rank = np.asarray(layers)[..., self.holder]
        return size_of_part(of_rank, self.held[self.holder], self.chunk)

    @derived
    def rank(self) -> np.ndarray:
        """Return the rank of every action; (n,) array of ints."""
        return np.repeat(np.arange(self.ranks), np.diff(self.first))

    @derived
    def holder(self) -> np.ndarray:
        """`stage_rank` as an array of ints, shape (stages,)."""
        return np.array(self.stage_rank)

    @derived
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
        """Return entry i, without its partner, where it is half of a pair."""
        return Action(int(self.stage[i]), KINDS[self.kind[i]], int(self.microbatch[i]))

    def whole(self, i: int) -> Action:
        """Return entry i, or the pair of which it is a half."""
        low = i - int(self.second[i])
        if self.paired[low]:
            return Action.pair(self.action(low), self.action(low + 1))
        return self.action(i)

    @derived
    def texts(self) -> tuple[str, ...]:
        """Return every entry as text, each half of a pair by itself; n of them."""
        kinds = [KINDS[code] for code in self.kind.tolist()]
        entries = zip(kinds, self.stage.tolist(), self.microbatch.tolist(), strict=True)
        return tuple(k if k == "IDLE" else f"{s}{k}{m}" for k, s, m in entries)

    @derived
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """Return every rank's actions; a pair is one action with two parts."""
        kinds = [KINDS[code] for code in self.kind.tolist()]
        numbers = self.stage.tolist(), kinds, self.microbatch.tolist()
        single = list(map(Action, *numbers))
        for i in np.flatnonzero(self.paired).tolist():
            single[i] = Action.pair(single[i], single[i + 1])
        whole, begins = ~self.second, np.cumsum(~self.second)
        kept = [action for action, here in zip(single, whole.tolist(), strict=True) if here]
        first = np.concatenate([[0], begins])[self.first].tolist()
        return tuple(tuple(kept[low:high]) for low, high in pairwise(first))

    def computing(self) -> "ScheduleArrays":
        """Return the entries without idle ticks."""
        return self.select(self.kind != IDLE)

    def select(self, keep: np.ndarray) -> "ScheduleArrays":
        """Return some of the entries; `keep` is True for them, shape (n,)."""
        first = np.concatenate([[0], np.cumsum(keep)])[self.first]
        arrays = {name: getattr(self, name)[keep] for name in _OF_ENTRIES}
        return replace(self, first=first, **arrays)

    def where(self, *kinds: int) -> np.ndarray:
        """Find the entry of one of `kinds` for every stage and microbatch, (stages, microbatches); -1 for none."""
        table = np.full((self.stages, self.microbatches), -1, dtype=np.int64)
        chosen = np.flatnonzero(np.isin(self.kind, kinds))
        table[self.stage[chosen], self.microbatch[chosen]] = chosen
        return table

    @derived
    def makers(self) -> np.ndarray:
        """Return the entry whose result each entry needs, shape (n,); -1 for none."""
        waits = np.full(len(self) + 1, -1, dtype=np.int64)  # one cell more, for -1 to write into
        forward, backward = self.where(F), self.where(I, B)
        waits[forward[1:]] = forward[:-1]
        waits[backward[:-1]] = backward[1:]
        waits[backward[-1]] = forward[-1]
        if self.splits_backward:
            weight = self.where(W)
            waits[weight] = np.where(weight >= 0, backward, -1)
        return waits[:-1]

    @derived
    def links(self) -> np.ndarray:
        """Return the link over which what each entry needs arrives, shape (n,); the number of links for none.

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

    @derived
    def defects(self) -> tuple[str, ...]:
        """Say why the schedule cannot be run; empty if it can."""
        for find in (_impossible, _wrong_numbers, _wrong_order):
            if found := tuple(islice(find(self), _MOST_DEFECTS)):
                return found
        return tuple(_blocked(self))

    @derived
    def node(self) -> np.ndarray:
        """Return the node of every entry, (n,) array of ints; both halves of a pair share one."""
        return np.cumsum(~self.second) - 1

    @derived
    def entry(self) -> np.ndarray:
        """Return the first entry of every node; (actions,) array of ints."""
        return np.flatnonzero(~self.second)

    @derived
    def graph(self) -> Graph:
        """Return what waits for what, where nothing is wrong but that ranks may wait for each other.

        Raises
        ------
        TooLarge
        """
        actions, second = len(self.entry), self.second
        received = np.flatnonzero(self.links < self.stages - 1)
        # One line for each pair of sender and receiver; its messages in the sender's order.
        line = self.rank[self.makers[received]] * np.int64(self.ranks) + self.rank[received]
        order = np.lexsort((self.makers[received], line))
        received, line = received[order], line[order]
        count = actions + len(received)
        first = np.append(self.node, actions)[self.first]
        before = np.arange(count) - 1
        before[first[:-1][np.diff(first) > 0]] = count
        before[actions + np.flatnonzero(np.diff(line, prepend=-1))] = count
        source = np.where(self.makers >= 0, self.node[self.makers], count)
        made_by = source[received]
        source[received] = np.arange(actions, count)
        waits, meant = [before], [np.append(self.entry, -1)[np.minimum(before[:actions], actions)]]
        for half in (~second, second) if second.any() else (~second,):
            needed, entry = np.full(count, count), np.full(actions, -1)
            needed[self.node[half]], entry[self.node[half]] = source[half], self.makers[half]
            waits.append(needed)
            meant.append(entry)
        waits[1][actions:] = made_by
        base, row = 4 * self.stages, self._row_alone[self.entry]
        row[self.node[self.paired]] = base + self._pairs[1]
        row = np.append(row, base + len(self._pairs[0]) + self.links[received])
        return Graph(first=first, waits=tuple(waits), meant=tuple(meant), row=row)

    @cached_property
    def _row_alone(self) -> np.ndarray:
        """The row of `times` of every entry by itself; (n,) array of ints."""
        row = self.kind * np.int64(self.stages) + self.stage
        return np.where(self.kind == IDLE, -1, row)

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """For each different pair the rows of its halves, shape (P, 2), and for every pair which it is."""
        halves = np.stack([self._row_alone[self.paired], self._row_alone[self.second]], axis=1)
        different, which = np.unique(halves, axis=0, return_inverse=True)
        return different, which.ravel()

    def times(self, times: np.ndarray, comm: np.ndarray, overlap: float = 1.0) -> np.ndarray:
        """Return how long everything takes that nodes do, by row: F, I, B, W of every stage, pairs, messages, nothing.

        Parameters
        ----------
        times : float array, shape (3, stages) or (3, stages, K)
            Forward, input gradient and weight gradient of every stage.
        comm : float array, shape (stages - 1,) or (stages - 1, K)
            Of every link.
        overlap : float
            What a pair takes, as a share of the sum of its parts.

        Returns
        -------
        float array, shape (rows,) or (rows, K)
        """
        forward, back, weight = times
        single = np.concatenate([forward, back, back + weight, weight])
        one, other = self._pairs[0].T
        together = (single[one] + single[other]) * overlap
        return np.concatenate([single, together, comm, np.zeros_like(single[:1])])

    @derived
    def peak_in_flight(self) -> tuple[int, ...]:
        """Return per rank, most forwards whose full backward or input gradient has not ended.

        A rank does one thing at a time, so that its order alone decides; a pair holds both of its
        parts. In a schedule without backwards nothing waits for one: a rank holds what it works on.
        """
        if self.forward_only:
            return tuple(int(n > 0) for n in np.diff(self.first))
        step = (self.kind == F) * 1 - np.isin(self.kind, (B, I))
        rows = pairwise(self.first.tolist())
        return tuple(int(step[low:high].cumsum().max(initial=0)) for low, high in rows)

    @derived
    def held_counts(self) -> tuple[np.ndarray, ...]:
        """Return per rank, how much its order has it hold at the fullest moments, whatever the times.

        Returns
        -------
        tuple of int arrays, shape (n, 2v)
            Of each of the rank's v chunks the forwards whose full backward or input gradient has not
            ended; then of each the input gradients whose weight gradient has not. Of the moments that
            occur those that no other exceeds in all of these; with a activations of a chunk, and w of
            these still held by its weight gradient, the peak of `Timeline.memory` is the largest
            sum of i·a + j·w.
        """
        counts, rows = [], pairwise(self.first.tolist())
        for (low, high), chunks in zip(rows, self.held.tolist(), strict=True):
            kind, chunk = self.kind[low:high], self.chunk[self.stage[low:high]]
            here = chunk[:, None] == np.arange(chunks)
            ends, begins = np.isin(kind, (B, I)), kind == I
            changes = [(kind == F) * 1 - ends, begins * 1 - (kind == W)]
            step = np.concatenate([here * each[:, None] for each in changes], axis=1)
            step = step[step.any(axis=1)]
            # Only what a rank frees leaves less, so the fullest moments are just before.
            full = np.append((step[1:] < 0).any(axis=1), [True] * bool(len(step)))
            kept: list[np.ndarray] = []
            for row in sorted(set(map(tuple, step.cumsum(axis=0)[full].tolist())), key=sum)[::-1]:
                if not any((other >= row).all() for other in kept):
                    kept.append(np.array(row))
            counts.append(np.array(kept, dtype=np.int64).reshape(-1, 2 * chunks))
        return tuple(counts)


class _Rows(Sequence):
    """The rows of columns: `Schedule.actions`, made when they are looked at."""

    def __init__(self, columns: ScheduleArrays) -> None:
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
        arrays_of = attrgetter("first", *_OF_ENTRIES)
        return all(map(np.array_equal, arrays_of(self.columns), arrays_of(other.columns)))


def size_of_part(layers: Any, parts: Any, part: Any) -> Any:
    """Return how many of a rank's layers one of its parts has, numbered from 0: larger parts come first."""
    return (layers + parts - 1 - part) // parts


def columns_of(schedule: Schedule) -> ScheduleArrays:
    """Return the columns of a schedule, made once: schedules do not change."""
    if isinstance(schedule.actions, _Rows):
        return schedule.actions.columns
    kept = schedule.__dict__.get("_columns")
    if kept is None:
        kept = schedule.__dict__["_columns"] = _made(schedule)
    return kept


def runnable(schedule: Schedule) -> ScheduleArrays:
    """Return the columns of a schedule in which nothing is wrong.

    Raises
    ------
    InvalidSchedule, TooLarge
        Something is, or it would take minutes to run.
    """
    columns = columns_of(schedule)
    if columns.defects:
        raise InvalidSchedule(columns.defects, f"schedule {columns.name!r}")
    return columns


def a_schedule(what: str, schedule: Any) -> Schedule:
    """Return the argument of this name of the function `what`, if it is a schedule."""
    remedy = "a Schedule; make one with pl.schedule(...)"
    return instance(what, "schedule", schedule, Schedule, remedy)


def _made(schedule: Schedule) -> ScheduleArrays:
    parts = [[a.parts or (a,) for a in row] for row in schedule.actions]
    single = [part for row in parts for each in row for part in each]
    code = {kind: i for i, kind in enumerate(KINDS)}
    paired = [len(each) > half + 1 for row in parts for each in row for half in range(len(each))]
    lengths = [sum(map(len, row)) for row in parts]
    return ScheduleArrays(
        name=schedule.name,
        microbatches=schedule.microbatches,
        stage_rank=schedule.stage_rank,
        kind=np.array([code[part.kind] for part in single], np.int8),
        stage=np.array([part.stage for part in single], np.int32),
        microbatch=np.array([part.microbatch for part in single], np.int32),
        first=np.array([0, *np.cumsum(lengths)], np.int64),
        paired=np.array(paired, bool),
    )


def _impossible(columns: ScheduleArrays) -> Iterator[str]:
    """Find actions of stages or microbatches that do not exist, on ranks that do not hold the stage, and bad pairs."""
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


def _wrong_numbers(columns: ScheduleArrays) -> Iterator[str]:
    """Find actions that are there twice or not at all: every microbatch needs one F, and one B or else I and W."""
    shape = columns.stages, columns.microbatches
    cell = columns.stage * np.int64(shape[1]) + columns.microbatch
    cells = shape[0] * shape[1]
    # most of a table would be empty: one high number is enough for that
    if cells > 10 * len(columns) + 1_000_000:
        needed = f"{shape[0]:,} stages · {shape[1]:,} microbatches need {cells:,} forwards"
        yield f"{needed}, and there are {np.count_nonzero(columns.kind == F):,}"
        return
    code = np.where(columns.kind == IDLE, -1, columns.kind * np.int64(cells) + cell)
    count = np.bincount(code[code >= 0], minlength=IDLE * cells).reshape(IDLE, *shape)
    for kind, stage, batch in np.argwhere(count > 1):
        times = f"{count[kind, stage, batch]} times on rank {columns.holder[stage]}"
        yield f"{stage}{KINDS[kind]}{batch} is there {times}, expected once"
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


def _wrong_order(columns: ScheduleArrays) -> Iterator[str]:
    """Find actions listed before what they need on their own rank."""
    pairs = [columns.makers]
    if not columns.forward_only:
        forward, backward = columns.where(F), columns.where(I, B)
        forward_of = np.full(len(columns), -1)
        forward_of[backward] = forward
        # on the last stage both are the same
        pairs.append(np.where(forward_of == pairs[0], -1, forward_of))
    entries, rank = np.arange(len(columns)), columns.rank
    late = [(needs > entries) & (rank[needs] == rank) for needs in pairs]
    for i in np.flatnonzero(np.logical_or.reduce(late)):
        for needs in (needs for needs, mask in zip(pairs, late, strict=True) if mask[i]):
            yield f"{_place(columns, i)} waits for {columns.action(needs[i])}, which comes later on the same rank"
    # The two parts of a pair run at the same time, so neither may need the other.
    for needs in pairs:
        for i in np.flatnonzero(columns.paired):
            if needs[i + 1] == i:
                yield f"{_place(columns, i)}: the backward of the pair waits for its own forward"


def _blocked(columns: ScheduleArrays) -> list[str]:
    """Return the circle of ranks that wait for each other, one sentence per edge; empty without a deadlock."""
    graph, entry = columns.graph, columns.entry
    never = np.flatnonzero(graph.rounds == 0)
    ranks, first = np.unique(columns.rank[entry[never]], return_index=True)
    stuck = dict(zip(ranks.tolist(), never[first].tolist(), strict=True))
    rank, seen, edges = min(stuck, default=-1), [], []
    while stuck and rank not in seen:
        seen.append(rank)
        head = stuck[rank]
        needed_by = enumerate((makers[head] for makers in graph.makers), start=1)
        which = next(i for i, one in needed_by if one < graph.actions and not graph.rounds[one])
        # Data comes from one half of a pair and goes to one half; a rank is busy with both.
        whole, blocker = columns.whole(int(entry[head])), int(graph.meant[which][head])
        waiting = f"{whole.parts[which - 1]} of {whole}" if whole.parts else str(whole)
        other = int(columns.rank[blocker])
        ahead = stuck[other]
        late = columns.node[blocker] != ahead
        behind = f", which comes after {columns.whole(int(entry[ahead]))}" if late else ""
        needed = f"{columns.action(blocker)} on rank {other}{behind}"
        edges.append(f"{waiting} on rank {rank} waits for {needed}")
        rank = other
    circle = edges[seen.index(rank) :] if stuck else []
    return [f"deadlock: {circle[0]}", *circle[1:]] if circle else []


def _place(columns: ScheduleArrays, i: SupportsInt) -> str:
    rank = int(columns.rank[int(i)])
    position = int(i) - int(columns.first[rank])
    return f"{columns.action(int(i))} (rank {rank}, position {position})"


def defects(schedule: Schedule) -> tuple[str, ...]:
    """Say why a schedule cannot be run: impossible, duplicate or missing actions, wrong order, or a deadlock.

    Parameters
    ----------
    schedule : Schedule
        Complete or not.

    Returns
    -------
    tuple of str
        Empty for a schedule that can be run; at most a thousand.

    Raises
    ------
    InvalidValue
        If `schedule` is not a Schedule.
    TooLarge
        It would take minutes to run; more than a million rounds of actions.

    Examples
    --------
    >>> import pipelab as pl
    >>> defects(pl.Schedule.of("mine", [["0F0", "0B0"], ["1F0"]]))
    ('1B0 is missing on rank 1',)
    """
    return columns_of(a_schedule("defects", schedule)).defects
