"""Requests, event by event: what those who send them wait for.

A request brings a prompt, and its answer is written token by token. It waits until there is room for it. Then it is a
sequence that goes round, through all stages and links, once for a part of its prompt or for a token. Stages and links
are *lanes*: each works on one batch at a time, in the order in which they come. There are two kinds of events: a
request comes, or a batch comes back to the first stage. Then whoever is ready there may be the next batch. How many
batches may be under way, and who is in them, is up to the engine, its filling (`docs/fillings.md`):

    filling          batches under way (`at_once`)    in a batch (`sequences`)
    synchronous      the plan's number in flight      the plan's batch; those that came back together, and new ones
    by_stages        likewise; at most one a stage    likewise
    one              1                                likewise; with transformers (`refills` is false) nobody joins a
                                                      batch until all its answers are complete
    micro_batches    1                                all; it is cut into parts that follow one another (`part_tokens`)
    dynamic          any number                       1; but each stage takes all that waits in front of it

In a batch those that write come first. What is left of its tokens goes to prompts, in the order of arrival; the last
token of a prompt gives the first of the answer. A request is admitted when memory has room: for its whole answer, or,
with `grows`, for its prompt alone. Then the sequence that was admitted last loses its cache when there is no room for
one more token, and reads again all that it had (vLLM's preemption by recomputation).

A batch passes lanes that no other line uses in one step (`_pass`), as nobody overtakes there.
`tests/front/test_serving.py` holds this to M/M/1, M/D/1, tandems and the evaluator's rates.
"""

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Line", "Request", "Simulation", "Times", "Visit", "Work"]

Times = Callable[["Work"], tuple[np.ndarray, np.ndarray]]


class Work(NamedTuple):
    """What a lane does at once.

    Attributes
    ----------
    reads, prompts, behind : float
        Tokens of prompts, and of how many; pairs of one of them with a token that was read in a batch before.
    writes, context : float
        Sequences that get a token, and what these look back at in the mean.
    """

    reads: float = 0
    prompts: float = 0
    writes: float = 0
    context: float = 0.0
    behind: float = 0.0


class Line(NamedTuple):
    """A pipeline or a way of a flow: its lanes in order, and the rules for what enters.

    Attributes
    ----------
    lanes : array of int, shape (K,)
        Their numbers; lines may share some.
    times : function of Work
        For each lane the seconds for which a batch takes it up, and those from there until it is handed on, while the
        next one is already at work; shape (K,) each.
    at_once : float
        Batches under way.
    sequences : float
        In one batch.
    tokens : float
        In one batch: a token for each sequence that writes, and those of prompts.
    room : float
        Tokens that memory holds, of prompts and answers.
    grows : bool
        Whether room is taken token by token.
    refills : bool
        Whether new sequences join those that have not ended yet.
    part_tokens, parts_at_once : float
        A batch is cut into parts of so many tokens, of which so many are under way.
    back_seconds : float
        From the end of the last lane until a sequence is ready again.
    share : float
        Of the requests.
    reads : bool
        False: a request comes with its prompt's cache.
    hands_on : function of int, or None
        Seconds that the cache of a prompt of so many tokens takes to whoever writes the answer. None: this line does.
    """

    lanes: np.ndarray
    times: Times
    at_once: float = 1
    sequences: float = math.inf
    tokens: float = math.inf
    room: float = math.inf
    grows: bool = False
    refills: bool = True
    part_tokens: float = math.inf
    parts_at_once: float = math.inf
    back_seconds: float = 0.0
    share: float = 1.0
    reads: bool = True
    hands_on: Callable[[int], float] | None = None


class Request(NamedTuple):
    """When it comes, in seconds, and the tokens of its prompt and of its answer.

    `written` of the answer may be there already, and then the prompt has been read: so a closed loop begins in the
    middle.
    """

    seconds: float
    prompt: int
    answer: int
    written: int = 0


@dataclass(slots=True, eq=False)
class Visit:
    """A request from its arrival to its end; times in seconds, not a number until they come.

    Attributes
    ----------
    request : Request
    came, admitted, first, ended : float
        When it came, was first admitted, had its first and its last token.
    line : int
        That writes the answer.
    preempted : int
        How often it lost its cache.
    rejected : bool
        It needs more room than there is.
    """

    request: Request
    came: float
    number: int
    line: int = 0
    admitted: float = math.nan
    first: float = math.nan
    ended: float = math.nan
    preempted: int = 0
    rejected: bool = False
    to_read: int = 0
    to_write: int = 0
    context: int = 0  # tokens that are in memory
    held: int = 0  # tokens for which there is room
    turn: int = 0  # in the order of admission, the last time
    entered: float = 0.0  # the first lane, the last time


class Batch(NamedTuple):
    """Sequences that travel together, each with the tokens of its prompt that are read; 0: it writes."""

    line: int
    parts: list[tuple[Visit, int]]

    @property
    def work(self) -> Work:
        """What a lane has to do for it."""
        reads = sum(tokens for _, tokens in self.parts)
        contexts = [visit.context for visit, tokens in self.parts if not tokens]
        mean = sum(contexts) / len(contexts) if contexts else 0.0
        behind = sum(tokens * visit.context for visit, tokens in self.parts)
        return Work(reads, len(self.parts) - len(contexts), len(contexts), mean, behind)


@dataclass(slots=True, eq=False)
class Gate:
    """What is in front of a line, and what is in it."""

    waiting: deque[Visit] = field(default_factory=deque)
    ready: list[Visit] = field(default_factory=list)  # in the order of admission
    running: int = 0  # sequences that are admitted
    under_way: int = 0  # batches
    held: int = 0  # tokens


class Simulation:
    """Lines, and the requests that come to them.

    Parameters
    ----------
    lines : sequence of Line
        To which requests are sent in turns, weighted by `share`. Where some hand on, the others only write answers.
    requests : iterable of Request
        By time. If they end, nothing comes any more.
    takes_all : collection of int
        Lanes that take all that waits in front of them at once: prompts in one pass, then tokens in another. What they
        took together they hand on one by one, each its line's time later.
    clients : int, optional
        A closed loop: so many requests come at their times; then the next comes when one has ended, whatever its time
        says.
    follow : int, optional
        Number of a request, counted from 0, whose way is noted.

    Attributes
    ----------
    visits : list of Visit
        In the order of arrival.
    busy : array of float
        Seconds that each lane has worked.
    tokens, token_seconds : int, float
        Tokens written, and what they took from the first lane to the end of the last, in all.
    way : list of (int, float, float, Work)
        Of the request that is followed: lane, beginning and end in seconds, and what was done.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        requests: Iterable[Request],
        takes_all: Collection[int] = (),
        clients: int | None = None,
        follow: int | None = None,
    ) -> None:
        self.lines, self.requests, self.takes_all = lines, iter(requests), set(takes_all)
        self.closed, self.follow = clients is not None, follow
        users = Counter(lane for line in lines for lane in line.lanes.tolist())
        shared = {lane for lane, number in users.items() if number > 1} | self.takes_all
        self.stops = [stops_of(line, shared) for line in lines]
        self.free_at, self.busy = np.zeros(max(users) + 1), np.zeros(max(users) + 1)
        self.queues = defaultdict[int, list[tuple[Batch, int]]](list)
        self.gates = [Gate() for _ in lines]
        self.sent = [0] * len(lines)
        self.first_lines = [i for i, line in enumerate(lines) if line.hands_on]
        self.answering = [i for i, line in enumerate(lines) if not line.hands_on]
        self.now, self.planned, self.ended = 0.0, 0, 0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.woken: set[int] = set()  # lines
        self.called: set[int] = set()  # lanes
        self.turns = count()
        self.visits: list[Visit] = []
        self.tokens, self.token_seconds = 0, 0.0
        self.way: list[tuple[int, float, float, Work]] = []
        for _ in range(1 if clients is None else clients):
            self._next()

    def run(self, until: Callable[["Simulation"], bool]) -> None:
        """Go on until something is true, or nothing happens any more.

        Parameters
        ----------
        until : function of Simulation
            Asked after each event.
        """
        while self.events and not until(self):
            self.now, _, happens, of = heapq.heappop(self.events)
            happens(*of)
            if not self.events or self.events[0][0] > self.now:  # all that happens now has happened
                for line in sorted(self.woken):
                    self._fill(line)
                self.woken.clear()
                for lane in sorted(self.called):
                    self._take(lane)
                self.called.clear()

    def _plan(self, seconds: float, happens: Callable[..., None], *of: Any) -> None:
        self.planned += 1  # of two events at a time the one that was planned first
        heapq.heappush(self.events, (seconds, self.planned, happens, of))

    # Requests come

    def _next(self) -> None:
        """Plan the next arrival."""
        request = next(self.requests, None)
        if request is not None:
            seconds = 0.0 if self.closed and self.ended else request.seconds
            self._plan(max(self.now, seconds), self._arrive, request)

    def _arrive(self, request: Request) -> None:
        visit = Visit(request, self.now, len(self.visits))
        visit.to_read, visit.to_write = request.prompt, request.answer - request.written
        if request.written:
            visit.to_read, visit.context = 0, request.prompt + request.written
        self.visits.append(visit)
        self._send(visit, self.first_lines or self.answering)
        if not self.closed:
            self._next()

    def _send(self, visit: Visit, among: Sequence[int]) -> None:
        """Choose the line that is furthest behind its share."""
        turns = 1 + sum(self.sent[i] for i in among)
        whole = sum(self.lines[i].share for i in among)
        visit.line = max(among, key=lambda i: turns * self.lines[i].share / whole - self.sent[i])
        self.sent[visit.line] += 1
        line = self.lines[visit.line]
        if not line.reads and visit.to_read:
            visit.context, visit.to_read = visit.to_read, 0
        if visit.request.prompt + (1 if line.hands_on else visit.request.answer) > line.room:
            visit.rejected = True
            self._end(visit)
        else:
            self.gates[visit.line].waiting.append(visit)
        self.woken.add(visit.line)

    # A batch is formed

    def _fill(self, at: int) -> None:
        gate = self.gates[at]
        while gate.under_way < self.lines[at].at_once:
            batch = Batch(at, self._form(self.lines[at], gate))
            if not batch.parts:
                break
            gate.under_way += 1
            for visit, _ in batch.parts:
                visit.entered = self.now
            self._move(batch, 0)

    def _form(self, line: Line, gate: Gate) -> list[tuple[Visit, int]]:
        """Choose who is in the next batch: who writes, who reads, and who is admitted."""
        parts: list[tuple[Visit, int]] = []
        for visit in [v for v in gate.ready if not v.to_read]:
            if len(parts) == min(line.sequences, line.tokens):
                break
            if not line.grows or self._has_room(visit, line, gate):
                parts.append((visit, 0))
        left = line.tokens - len(parts)
        for visit in [v for v in gate.ready if v.to_read]:
            if len(parts) < line.sequences and left > 0:
                parts.append((visit, int(min(left, visit.to_read))))
                left -= parts[-1][1]
        joins = line.refills or not gate.running
        while joins and gate.waiting and len(parts) < line.sequences and left > 0:
            visit = gate.waiting[0]
            answer = 1 if line.grows or line.hands_on else visit.to_write
            tokens = visit.to_read + visit.context + answer
            if gate.held + tokens > line.room:
                break
            gate.waiting.popleft()
            gate.running += 1
            gate.held += tokens
            visit.held = tokens
            visit.turn = next(self.turns)
            visit.admitted = self.now if math.isnan(visit.admitted) else visit.admitted
            parts.append((visit, int(min(left, visit.to_read))))
            left -= max(1, parts[-1][1])
        chosen = {visit.number for visit, _ in parts}
        gate.ready = [visit for visit in gate.ready if visit.number not in chosen]
        return parts

    def _has_room(self, visit: Visit, line: Line, gate: Gate) -> bool:
        """Make room for one more token: others of later admission lose theirs, at last the sequence itself."""
        while visit in gate.ready and visit.context + 1 > visit.held:
            if gate.held < line.room:
                gate.held += 1
                visit.held += 1
            else:
                self._preempt(gate.ready[-1], gate)
        return visit in gate.ready

    def _preempt(self, visit: Visit, gate: Gate) -> None:
        gate.ready.remove(visit)
        gate.running -= 1
        gate.held -= visit.held
        visit.to_read = visit.context + (visit.to_read or 1)  # its last token is not in memory yet
        visit.context, visit.held = 0, 0
        visit.preempted += 1
        gate.waiting.appendleft(visit)

    # It passes the lanes

    def _move(self, batch: Batch, position: int) -> None:
        """Let a batch go on from its lane of this position, as far as no other may come in between."""
        line = self.lines[batch.line]
        if line.lanes[position] in self.takes_all:
            self.queues[line.lanes[position]].append((batch, position))
            self.called.add(line.lanes[position])
            return
        stop, ends = self.stops[batch.line][position], list[float]()
        for work in cut(batch.work, line.part_tokens):
            under_way = len(ends) >= line.parts_at_once
            at = ends[-int(line.parts_at_once)] if under_way else self.now
            ends.append(self._pass(batch, work, at, slice(position, stop)))
        self._plan(ends[-1], self._go_on, batch, stop)

    def _pass(self, batch: Batch, work: Work, at: float, lanes: slice) -> float:
        """Let lanes that follow one another work; returns when the last one has handed on.

        With s_k and w_k the times of lane k, o_k = Σ_{i<k} (s_i + w_i), and f_k when it is free, it begins at
        b_k = max(f_k, b_{k-1} + s_{k-1} + w_{k-1}), so that b_k - o_k = max(f_k - o_k, b_{k-1} - o_{k-1}): the greatest
        of f_i - o_i up to k, and of the time at which it comes.
        """
        line = self.lines[batch.line]
        which = line.lanes[lanes]
        seconds, waits = (times[lanes] for times in line.times(work))
        ends = np.cumsum(seconds + waits)
        offsets = ends - seconds - waits
        begins = offsets + np.maximum.accumulate(np.maximum(self.free_at[which] - offsets, at))
        self.free_at[which] = begins + seconds
        self.busy[which] += seconds
        handed = begins + seconds + waits
        if self._is_followed(batch.parts):
            self.way += [(*row, work) for row in zip(which, begins, handed, strict=True)]
        return float(handed[-1])

    def _is_followed(self, parts: Iterable[tuple[Visit, int]]) -> bool:
        return self.follow is not None and any(visit.number == self.follow for visit, _ in parts)

    def _take(self, lane: int) -> None:
        """Let a lane that takes all begin: with the prompts, then with the tokens."""
        if self.free_at[lane] > self.now or not self.queues[lane]:
            return
        queue, at = self.queues.pop(lane), self.now
        for reads in (True, False):
            group = [(batch, k) for batch, k in queue if (batch.parts[0][1] > 0) == reads]
            if group:
                parts = [part for batch, _ in group for part in batch.parts]
                first, position = group[0]
                work = Batch(first.line, parts).work
                seconds, waits = (x[position] for x in self.lines[first.line].times(work))
                if self._is_followed(parts):
                    self.way.append((lane, at, at + seconds, work))
                at += seconds
                self.busy[lane] += seconds
                # A message each, one after the other.
                for number, (batch, k) in enumerate(group, 1):
                    self._plan(at + number * waits, self._go_on, batch, k + 1)
        self.free_at[lane] = at
        self._plan(at, self.called.add, lane)

    def _go_on(self, batch: Batch, position: int) -> None:
        if position < len(self.lines[batch.line].lanes):
            self._move(batch, position)
        else:
            self._leave(batch)

    # It leaves

    def _leave(self, batch: Batch) -> None:
        """Count tokens; who has one more to write or to read is ready when the token is back."""
        line = self.lines[batch.line]
        stay = []
        for visit, read in batch.parts:
            visit.to_read -= read
            visit.context += read or 1
            if not visit.to_read:
                visit.to_write -= 1
                visit.first = self.now if math.isnan(visit.first) else visit.first
            if not read:
                self.tokens += 1
                self.token_seconds += self.now - visit.entered
            if visit.to_read or (visit.to_write and not line.hands_on):
                stay.append(visit)
                continue
            gate = self.gates[batch.line]
            gate.running -= 1
            gate.held -= visit.held
            if line.hands_on:
                later = self.now + line.hands_on(visit.request.prompt)
                visit.first, visit.held = later, 0
                if visit.to_write:
                    self._plan(later, self._send, visit, self.answering)
                else:
                    self._plan(later, self._end, visit)
            else:
                self._end(visit)
        self.woken.add(batch.line)  # there is room, where somebody has ended
        later = self.now + (line.back_seconds if stay else 0.0)
        self._plan(later, self._back, batch.line, stay)

    def _back(self, at: int, stay: list[Visit]) -> None:
        gate = self.gates[at]
        gate.under_way -= 1
        gate.ready = sorted([*gate.ready, *stay], key=lambda visit: visit.turn)
        self.woken.add(at)

    def _end(self, visit: Visit) -> None:
        visit.ended = self.now
        self.ended += 1
        if self.closed:
            self._next()


def stops_of(line: Line, shared: Collection[int]) -> list[int]:
    """Return for every position of a line the next one whose lane others may take up before; or the end."""
    stops, stop = [], len(line.lanes)
    for k in reversed(range(len(line.lanes))):
        stops.append(stop)
        stop = k if line.lanes[k] in shared else stop
    return stops[::-1]


def cut(work: Work, tokens: float) -> list[Work]:
    """Cut a batch into equal parts of so many tokens at most."""
    parts = max(1, math.ceil((work.reads + work.writes) / tokens))
    # The share of a prompt that is not behind another part of it.
    whole = min(1.0, work.prompts / parts)
    behind = work.behind + (1 - whole) * work.reads**2 / 2 / max(1, work.prompts)
    part = Work(
        reads=work.reads / parts,
        prompts=work.prompts / parts,
        writes=work.writes / parts,
        context=work.context,
        behind=behind / parts,
    )
    return [part] * parts
