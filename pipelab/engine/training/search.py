"""Placements in order of what bounds them, simulated until the bound meets the best.

A node is the first stages of a placement: what they bound by themselves, and what the rest must add
to them (`Suffixes`). Many nodes of least bound are extended at a time.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.tolerances import PROVEN_WITHIN
from pipelab.engine.training.batch import Batch
from pipelab.engine.training.bounds import REAL, own_terms, run_bound
from pipelab.engine.training.suffixes import Suffixes

MOST_NODES = 2_500_000
_NODES_AT_ONCE = 256
_LEAVES_AT_ONCE = 1024
_FIELDS = (
    "ranks", "left", "state", "last", "first", "before", "used", "lead", "own", "forward", "both",
)  # fmt: skip


class Search:
    """All placements of the tables of suffixes.

    Attributes
    ----------
    tables : mapping of int to Suffixes
        By the number of ranks.
    best : float
        Seconds; nothing that is not less is looked at.
    bound : float
        No placement has less, but for the stages that the table leaves out.
    keep : function of (ranks, compositions, cuts, seconds)
        Called for every better placement.
    """

    def __init__(
        self,
        tables: Mapping[int, Suffixes],
        best: float,
        keep: Callable,
        deadline: Deadline,
        gap: float = 0.0,
    ) -> None:
        self.tables, self.best, self.keep, self.deadline = tables, best, keep, deadline
        some = next(iter(tables.values()))
        self.gap, self.stages, self.shape = gap, some.stages, some.shape
        self.heap: list[tuple[float, int]] = []
        self.fresh: list[tuple[float, int]] = []  # of the heap, what was last added
        self.taken: set[int] = set()  # of the heap, what was extended out of turn
        self.leaves: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.waiting, self.simulated, self.bound = 0, 0, 0.0
        tracks = len(self.shape.hops)
        self.count, size = 0, 1024
        self.ranks, self.left, self.state, self.last, self.first, self.before = (
            np.zeros(size, dtype=np.int32) for _ in range(6)
        )
        self.used = np.zeros((size, len(self.stages.classes)), dtype=np.int16)
        self.lead, self.own = np.zeros((size, tracks)), np.zeros((size, tracks))
        # Of the last stage: its forward, and it with what is run before its gradient is sent on.
        self.forward, self.both = np.zeros(size), np.zeros(size)
        self.runs = self.shape.windows and bool((self.stages.hop > 0).any())
        self._roots()

    def _roots(self) -> None:
        for ranks, table in self.tables.items():
            least = table.whole(ranks)
            rows = np.flatnonzero(least < min(REAL, self._useful))
            zero = np.zeros((len(rows), self.lead.shape[1]))
            self._push(
                least[rows], ranks, ranks, rows, np.full(len(rows), -1), np.zeros(len(rows), int),
                np.full(len(rows), -1), np.zeros((len(rows), self.used.shape[1]), int), zero, zero,
                np.zeros(len(rows)), np.zeros(len(rows)),
            )  # fmt: skip

    @property
    def nearest(self) -> float:
        """The least bound of what is still to be extended; infinite where nothing is."""
        while self.heap and self.heap[0][1] in self.taken:
            self.taken.remove(heapq.heappop(self.heap)[1])
        return self.heap[0][0] if self.heap else np.inf

    @property
    def _useful(self) -> float:
        """What is not below this need not be looked at."""
        return self.best * (1 - PROVEN_WITHIN)

    def _push(
        self, bound: np.ndarray, ranks: int, left: int, state: np.ndarray, last: np.ndarray,
        first: np.ndarray, before: np.ndarray, used: np.ndarray, lead: np.ndarray, own: np.ndarray,
        forward: np.ndarray, both: np.ndarray,
    ) -> None:  # fmt: skip
        n = len(bound)
        while self.count + n > len(self.ranks):
            for name in _FIELDS:
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        here = slice(self.count, self.count + n)
        self.ranks[here], self.left[here], self.state[here] = ranks, left, state
        self.last[here], self.first[here], self.before[here] = last, first, before
        self.used[here], self.lead[here], self.own[here] = used, lead, own
        self.forward[here], self.both[here] = forward, both
        pairs = zip(bound.tolist(), range(self.count, self.count + n), strict=True)
        if left:
            self.fresh += (added := list(pairs))
            for pair in added:
                heapq.heappush(self.heap, pair)
        else:
            self.leaves[ranks] += pairs
            self.waiting += n
        self.count += n

    def rounds(self, beyond: float = np.inf) -> Generator[None, None, str | None]:
        """Search in rounds of a moment until nothing better can be left below `beyond`.

        Returns what stopped it before, if anything. Raises Ended.
        """
        while True:
            nearest = self.nearest
            if nearest >= self._useful or self.waiting >= _LEAVES_AT_ONCE:
                self._simulate()
            waiting = min(
                (pair[0] for each in self.leaves.values() for pair in each), default=np.inf
            )
            self.bound = min(nearest, waiting, self.best)
            if self.bound >= min(self._useful, beyond):
                return None
            if self.best * (1 - self.gap) <= self.bound:
                return "gap limit"
            if self.count > MOST_NODES:
                return "list limit"
            self.deadline.check()
            self._extend_nearest()
            yield

    def dive(self) -> None:
        """To a placement quickly: from the node of least bound always to its best.

        Where a placement is known, one attempt will do.
        """
        known = self.best < np.inf
        while self.nearest < np.inf and not self.waiting:
            self.deadline.check()
            self._extend([heapq.heappop(self.heap)[1]])
            while not self.waiting and self.fresh:
                node = min(self.fresh)[1]
                self.taken.add(node)
                self._extend([node])
            if known:
                break
        self._simulate()

    def _extend_nearest(self) -> None:
        chosen: list[int] = []
        while len(chosen) < _NODES_AT_ONCE and self.nearest < self._useful:
            chosen.append(heapq.heappop(self.heap)[1])
        self._extend(chosen)

    def _extend(self, nodes: list[int]) -> None:
        self.fresh = []
        by_place = defaultdict(list)
        for node in nodes:
            by_place[int(self.ranks[node]), int(self.left[node])].append(node)
        for (ranks, left), some in by_place.items():
            self._extend_level(ranks, left, np.array(some))

    def _extend_level(self, ranks: int, left: int, nodes: np.ndarray) -> None:
        """Put one more stage behind these, every one that may come next."""
        suffixes, stages = self.tables[ranks], self.stages
        order = suffixes.orders[ranks]
        rank, parts = ranks - left, suffixes.parts(suffixes.exact(ranks, ranks - left))
        onto, groups, last_layer = suffixes.onto[left], suffixes.groups, stages.layers
        size, earlier = np.arange(suffixes.most_layers), self._earlier(rank, nodes)
        for c, counts in enumerate(stages.composition):
            fits = (self.used[nodes] + counts <= stages.classes.count).all(axis=1)
            rest = onto[self.state[nodes], groups.of[c]]
            here = fits & (rest >= 0)
            some = nodes[here]
            if not len(some):
                continue
            rest = onto[self.state[some], groups.of[c]]
            first = self.first[some]
            after = suffixes.after(left, rest, groups.onward[c])
            after = after.take(np.arange(len(rest)), first)
            mine = parts.take(np.full(len(some), c), first)
            own = own_terms(
                self.shape, mine, order.window[rank],
                None if after.link is None else after.beyond, after.link,
            )  # fmt: skip
            if rank:
                messages = np.array(self.shape.hops) * stages.hop[self.last[some], c][:, None]
                lead = (self.lead[some] + messages).T[..., None]
            else:
                lead = np.zeros((len(self.shape.hops), len(some), len(size)))
                if self.shape.split:
                    lead[-1] = mine.weight
            own = np.maximum(self.own[some].T[..., None], lead + own)
            for i, (begins, forward, both) in enumerate(earlier):
                started = begins[here, None]
                run = lead[-1] + mine.both - started
                through = run if after.link is None else run + after.beyond
                most = order.window[i], order.window[rank]
                found = run_bound(
                    self.shape, most, forward[here, None], both[here, None], run, through
                )
                np.maximum(own[-1], started + found + mine.step, out=own[-1])
            lead = lead + mine.lead
            bound = np.maximum(own, lead + after.value.transpose(1, 0, 2)).max(axis=0)
            end = first[:, None] + size + 1
            good = (bound < min(self._useful, REAL)) & (end <= last_layer)
            at, n = np.nonzero(good)
            self._push(
                bound[at, n], ranks, left - 1, rest[at], np.full(len(at), c), end[at, n], some[at],
                self.used[some[at]] + counts, lead[:, at, n].T, own[:, at, n].T,
                mine.forward[at, n], mine.both[at, n],
            )  # fmt: skip

    def _earlier(self, rank: int, nodes: np.ndarray) -> Sequence[tuple[np.ndarray, ...]]:
        """Of every earlier stage of these nodes: when it may begin, and its times."""
        found = []
        for _ in range(rank if self.runs else 0):
            both = self.both[nodes]
            found.append((self.lead[nodes, -1] - both, self.forward[nodes], both))
            nodes = self.before[nodes]
        return found[::-1]

    def _simulate(self) -> None:
        """Step times of the placements found; the better ones are kept."""
        for ranks, found in self.leaves.items():
            nodes = np.array([node for bound, node in found if bound < self._useful], dtype=int)
            if not len(nodes):
                continue
            batch = self._placements(ranks, nodes)
            seconds = batch.step_times(self.stages, self.tables[ranks].orders[ranks])
            self.simulated += len(nodes)
            least = int(np.argmin(seconds))
            if seconds[least] < self._useful:
                self.best = float(seconds[least])
                self.keep(batch.compositions[least], batch.cuts[least], self.best)
        self.leaves.clear()
        self.waiting = 0

    def _placements(self, ranks: int, nodes: np.ndarray) -> Batch:
        """The way to these nodes, from the last stage back to the first."""
        compositions = np.empty((len(nodes), ranks), dtype=int)
        cuts = np.zeros((len(nodes), ranks + 1), dtype=int)
        for i in reversed(range(ranks)):
            compositions[:, i], cuts[:, i + 1] = self.last[nodes], self.first[nodes]
            nodes = self.before[nodes]
        return Batch(compositions, cuts)
