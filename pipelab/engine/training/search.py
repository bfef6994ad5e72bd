"""The least step time under one published rule: tables of bounds, and placements in their order.

A node is the first stages of a placement: what they bound by themselves, and what the rest must add
to them (`Suffixes`). Many nodes of least bound are extended at a time, and what is complete is
simulated, until the bound meets the best. A better placement is improved step by step: layers
moved, stages swapped, GPUs exchanged, put in and left out.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.tolerances import PROVEN_WITHIN
from pipelab.engine.training.bounds import MOST_REAL_S, RuleBounds, Suffixes, of_ranks, step_times
from pipelab.engine.training.stages import TrainingStages, least_slowest, merged

MOST_NODES = 2_500_000
_MOST_CELLS = 8_000_000  # of one level of a table of suffixes: more take seconds
_MOST_NUMBERS = 60_000_000  # of tables for one number of ranks each: half a gigabyte
_NODES_AT_ONCE = 256
_LEAVES_AT_ONCE = 1024
_NEIGHBOURS_SIMULATED = 256  # neighbours of least bound, per round
_FIRST_LIMIT_FACTOR = 1.25  # times the least time that the slowest stage may have
_TABLE_LIMIT_FACTOR = 2.0  # times the limit
_MOST_DIVES = 4  # numbers of ranks on which a first placement is looked for
_LIMIT_FACTOR_TO_REBUILD = 0.95  # a table with a limit so much lower saves more time than it takes

Plan = tuple[tuple[int, ...], tuple[int, ...]]  # compositions, and layers of every stage


@dataclass
class BestStep:
    """The best placement so far, over all rules.

    Attributes
    ----------
    seconds : float
        Of a step; infinite as long as there is none.
    rule : str
    plan : Plan or None
    on_change : function, optional
        Called after every change.
    """

    seconds: float = np.inf
    rule: str = ""
    plan: Plan | None = None
    on_change: Callable[[], None] | None = None

    @property
    def useful(self) -> float:
        """Seconds; what is not below this need not be looked at."""
        return self.seconds * (1 - PROVEN_WITHIN)

    def keep(self, rule: str, plan: Plan, seconds: float) -> None:
        """Take it if it is better."""
        if seconds < self.seconds:
            self.seconds, self.rule, self.plan = seconds, rule, plan
            if self.on_change is not None:
                self.on_change()


@dataclass(eq=False)
class StepTimeSearch:
    """All placements under one rule, in the order of their bounds.

    Parameters
    ----------
    best : BestStep
        Shared by all rules; nothing that is not better is looked at.
    gap : float
        Stop once the least is known to be lower by at most this share.

    Attributes
    ----------
    bound : float
        No placement under this rule has less than this or the best, in seconds; infinite where
        there is none.
    within : float
        Seconds per step: stages that alone make it longer are not in the tables.
    count, states : int
        Nodes, and states of the last tables.
    stopped : str or None
        What ended it early.
    """

    stages: TrainingStages
    rule: RuleBounds
    best: BestStep
    deadline: Deadline
    gap: float = 0.0
    bound: float = 0.0
    within: float = np.inf
    stopped: str | None = None
    count: int = 0
    states: int = 0

    def __post_init__(self) -> None:
        self.runs = self.rule.chunks == 1 and bool((self.stages.hop > 0).any())
        self.tables: dict[int, Suffixes] = {}  # by the number of ranks
        self.nodes: Any = None  # an array of `_node`

    def rounds(self) -> Iterator[None]:
        """Search in rounds of a moment until nothing better can be left, or something ends it."""
        try:
            yield from self._rounds()
        except Ended as end:
            self.stopped = end.reason
        self.tables, self.nodes = {}, None

    def _rounds(self) -> Iterator[None]:
        self.deadline.check()
        orders = self.rule.orders
        on_any = {self.rule.times(self.stages, p, rank) for p in orders for rank in range(p)}
        self.bound = max(self.bound, self.rule.microbatches * least_slowest(self.stages, on_any))
        if self.bound == np.inf:
            return
        if self.best.plan is not None and len(self.best.plan[0]) in orders:
            self._least(*np.array(self.best.plan)[:, None])
        least = self.bound
        self.within = min(_FIRST_LIMIT_FACTOR * least, self.best.seconds)
        while True:
            self.build()
            self._raise_bound()
            for _, root in sorted(self.roots)[:_MOST_DIVES]:
                self._improve(*self._descend(root))
            if self.best.plan is None:
                self.refine()
                self._improve(*self.dive())
            self._raise_bound()
            yield
            if self.within * _LIMIT_FACTOR_TO_REBUILD <= self.best.seconds <= self.within:
                break
            # What exceeds the best need not be in the tables, and the rest bounds more.
            wider = 2 * self.within if self.within < 100 * least else np.inf
            self.within = min(wider, self.best.seconds)
        self.refine()
        self._raise_bound()
        while self._is_open():
            self.deadline.check()
            self._extend_nearest()
            if self.nearest >= self.best.useful or self.waiting >= _LEAVES_AT_ONCE:
                self._improve(*self._simulate())
            self._raise_bound()
            yield
        self._raise_bound()

    def _is_open(self) -> bool:
        """Whether to go on; what else ended it is noted."""
        if self.bound >= self.best.useful:
            return False
        if self.best.seconds * (1 - self.gap) <= self.bound:
            self.stopped = "gap limit"
        elif self.count > MOST_NODES:
            self.stopped = "list limit"
        return self.stopped is None

    def _raise_bound(self) -> None:
        """Note what is proven by now: of all that is left, and of what is not simulated yet."""
        leaves = (bound for waiting in self.leaves.values() for bound, _ in waiting)
        left = min(self.nearest, min(leaves, default=np.inf))
        self.bound = max(self.bound, min(left, self.within, self.best.seconds))

    def build(self) -> None:
        """Make one table for all numbers of ranks."""
        self.merged = merged(self.stages, _MOST_CELLS // self.stages.layers)
        self._start(dict.fromkeys(self.rule.orders, self._table(self.rule.orders)))

    def refine(self) -> None:
        """Make a table for each number of ranks, if these bound more."""
        tables = dict(self.tables)
        if all(table.exact for table in tables.values()):
            return
        least = {p: float(table.whole(p).min(initial=np.inf)) for p, table in tables.items()}
        left = _MOST_NUMBERS
        for p in sorted(tables, key=lambda p: least[p]):
            if left > 0 and least[p] < min(MOST_REAL_S, self.best.seconds):
                tables[p] = self._table([p])
                left -= sum(values.size for values in tables[p].value)
        self._start(tables)

    def _table(self, every: Iterable[int]) -> Suffixes:
        limit = self.within / self.rule.microbatches
        # While the limit is being looked for, placements far beyond it need not be in the table.
        seconds = min(self.best.seconds, _TABLE_LIMIT_FACTOR * self.within)
        return Suffixes(self.stages, self.rule, every, self.merged, self.deadline, limit, seconds)

    def _start(self, tables: dict[int, Suffixes]) -> None:
        """Begin with the nodes of no stage yet."""
        self.tables = tables
        self.states = sum(len(s) for table in set(tables.values()) for s in table.state)
        self.heap: list[tuple[float, int]] = []
        self.roots: list[tuple[float, int]] = []  # the least for each number of ranks
        self.fresh: list[tuple[float, int]] = []  # of the heap, what was last added
        self.taken: set[int] = set()  # of the heap, what was extended out of turn
        self.leaves: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.count = self.waiting = 0
        self.nodes = np.zeros(1024, _node(len(self.rule.hops), len(self.stages.classes)))
        for ranks, table in self.tables.items():
            least = table.whole(ranks)
            rows = np.flatnonzero(least < min(MOST_REAL_S, self.best.useful))
            roots: Any = np.zeros(len(rows), dtype=self.nodes.dtype)
            roots["ranks"] = roots["left"] = ranks
            roots["state"], roots["last"], roots["before"] = rows, -1, -1
            if len(rows):
                root = self.count + int(least[rows].argmin())
                self.roots.append((float(least[rows].min()), root))
            self._push(least[rows], roots)

    @property
    def nearest(self) -> float:
        """The least bound of what is still to be extended; infinite where nothing is."""
        while self.heap and self.heap[0][1] in self.taken:
            self.taken.remove(heapq.heappop(self.heap)[1])
        return self.heap[0][0] if self.heap else np.inf

    def _push(self, bound: np.ndarray, nodes: Any) -> None:
        """Add nodes of one number of ranks, all with the same number of stages left."""
        if not (n := len(nodes)):
            return
        while self.count + n > len(self.nodes):
            self.nodes = np.concatenate([self.nodes, np.zeros_like(self.nodes)])
        self.nodes[self.count : self.count + n] = nodes
        pairs = list(zip(bound.tolist(), range(self.count, self.count + n), strict=True))
        self.count += n
        if nodes["left"][0]:
            self.fresh += pairs
            for pair in pairs:
                heapq.heappush(self.heap, pair)
        else:
            self.leaves[int(nodes["ranks"][0])] += pairs
            self.waiting += n

    def dive(self) -> tuple[float, Plan | None]:
        """Find a placement, if none is known: from the node of least bound, and if need be the next."""
        found: tuple[float, Plan | None] = (np.inf, None)
        while self.best.plan is None and self.nearest < np.inf:
            found = self._descend(self.heap[0][1])
        return found

    def _descend(self, node: int) -> tuple[float, Plan | None]:
        """Go from a node always to its best; return the placement at the end, if there is one."""
        self.fresh = [(0.0, node)]
        while not self.waiting and self.fresh:
            self.deadline.check()
            _, node = min(self.fresh)
            self.taken.add(node)
            self._extend([node])
        return self._simulate()

    def _extend_nearest(self) -> None:
        chosen: list[int] = []
        while len(chosen) < _NODES_AT_ONCE and self.nearest < self.best.useful:
            chosen.append(heapq.heappop(self.heap)[1])
        self._extend(chosen)

    def _extend(self, nodes: list[int]) -> None:
        self.fresh = []
        by_place = defaultdict(list)
        for node in nodes:
            by_place[self.nodes["ranks"][node], self.nodes["left"][node]].append(node)
        for (ranks, left), some in by_place.items():
            self._extend_level(int(ranks), int(left), np.array(some))

    def _extend_level(self, ranks: int, left: int, nodes: np.ndarray) -> None:
        """Put one more stage behind these, every one that may come next."""
        suffixes, stages, rule = self.tables[ranks], self.stages, self.rule
        rank, groups = ranks - left, suffixes.merged
        parts, held = suffixes.parts(ranks, rank), [rule.window(ranks, i) for i in range(rank + 1)]
        size, earlier = np.arange(suffixes.most_layers), self._earlier(rank, nodes)
        every = self.nodes[nodes]
        for c, counts in enumerate(stages.composition):
            fits = (every["used"] + counts <= stages.classes.count).all(axis=1)
            rest = suffixes.onto[left][every["state"], groups.of[c]]
            here = fits & (rest >= 0)
            if not here.any():
                continue
            some, rest = every[here], rest[here]
            first, row = some["first"], np.arange(len(rest))
            after, beyond = suffixes.after(left, rest, groups.onward[c], row, first)
            mine = parts.take(np.full(len(some), c), first)
            if rank:
                messages = rule.hops * stages.hop[some["last"], c][:, None]
                lead = (some["lead"] + messages).T[..., None]
            else:
                lead = np.zeros((len(rule.hops), len(some), len(size)))
                if rule.split:
                    lead[-1] = mine.weight
            alone = lead + rule.alone(mine, held[rank], beyond)
            alone = np.maximum(some["alone"].T[..., None], alone)
            for i, (begins, forward, both) in enumerate(earlier):
                started = begins[here, None]
                run = lead[-1] + mine.both - started
                most = held[i], held[rank]
                found = rule.run(most, forward[here, None], both[here, None], run, run + beyond)
                np.maximum(alone[-1], started + found + mine.step, out=alone[-1])
            bound = np.maximum(alone, lead + mine.lead + after).max(axis=0)
            end = first[:, None] + size + 1
            good = (bound < min(self.best.useful, MOST_REAL_S)) & (end <= stages.layers)
            at, n = np.nonzero(good)
            longer: Any = np.zeros(len(at), dtype=self.nodes.dtype)
            longer["ranks"], longer["left"], longer["state"] = ranks, left - 1, rest[at]
            longer["last"], longer["first"], longer["before"] = c, end[at, n], nodes[here][at]
            longer["used"] = some["used"][at] + counts
            longer["lead"] = (lead + mine.lead)[:, at, n].T
            longer["alone"] = alone[:, at, n].T
            longer["forward"], longer["both"] = mine.forward[at, n], mine.both[at, n]
            self._push(bound[at, n], longer)

    def _earlier(self, rank: int, nodes: np.ndarray) -> Sequence[tuple[np.ndarray, ...]]:
        """Return when every earlier stage of these nodes may begin, and its times."""
        found = []
        for _ in range(rank if self.runs else 0):
            some = self.nodes[nodes]
            found.append((some["lead"][:, -1] - some["both"], some["forward"], some["both"]))
            nodes = some["before"]
        return found[::-1]

    def _simulate(self) -> tuple[float, Plan | None]:
        """Simulate the placements found; return the best."""
        found: list[tuple[float, Plan | None]] = [(np.inf, None)]
        for ranks, leaves in self.leaves.items():
            nodes = np.array([leaf for bound, leaf in leaves if bound < self.best.useful], int)
            compositions, ends = np.empty((2, len(nodes), ranks), dtype=int)
            for i in reversed(range(ranks)):  # from the last stage back to the first
                some = self.nodes[nodes]
                compositions[:, i], ends[:, i], nodes = some["last"], some["first"], some["before"]
            found.append(self._least(compositions, np.diff(ends, axis=1, prepend=0)))
        self.leaves.clear()
        self.waiting = 0
        return min(found, key=lambda pair: pair[0])

    def _least(self, compositions: np.ndarray, sizes: np.ndarray) -> tuple[float, Plan | None]:
        """Simulate placements on one number of ranks; return the best, and keep it if none was better."""
        if not len(sizes):
            return np.inf, None
        found = step_times(self.stages, self.rule.orders[sizes.shape[1]], compositions, sizes)
        least = int(np.argmin(found))
        seconds = float(found[least])
        plan = tuple(compositions[least].tolist()), tuple(sizes[least].tolist())
        if seconds < self.best.useful:
            self.best.keep(self.rule.name, plan, seconds)
        return seconds, plan

    def _improve(self, seconds: float, plan: Plan | None) -> None:
        """Walk from a placement to the best of its neighbours, as long as it is better."""
        while plan is not None:
            by_ranks: dict[int, list[Plan]] = defaultdict(list)
            for neighbour in neighbours(self.stages, plan):
                by_ranks[len(neighbour[0])].append(neighbour)
            plan = None
            for ranks in sorted(by_ranks.keys() & self.rule.orders):
                if self.deadline.reason is not None:
                    return
                compositions, sizes = np.array(sorted(set(by_ranks[ranks]))).transpose(1, 0, 2)
                order = self.rule.orders[ranks]
                times = of_ranks(order, self.stages.seconds(order, compositions, sizes))
                work = (self.rule.microbatches * times[:3].sum(axis=0) + times[3]).max(axis=0)
                nearest = np.argsort(work, kind="stable")[:_NEIGHBOURS_SIMULATED]
                nearest = nearest[work[nearest] < seconds * (1 - PROVEN_WITHIN)]
                found, best = self._least(compositions[nearest], sizes[nearest])
                if found < seconds * (1 - PROVEN_WITHIN):
                    seconds, plan = found, best


def _node(tracks: int, classes: int) -> np.dtype:
    """Return the fields of the first stages of a placement.

    On how many ranks, how many are left; the state of the tables; the last stage's composition, where
    it ends, and the node before it; GPUs used, by class; when the next stage may begin and what all
    bound, by track; of the last stage its forward, and it with what is run before its gradient is
    sent on.
    """
    whole = [(name, np.int32) for name in ("ranks", "left", "state", "last", "first", "before")]
    parts = [("used", np.int16, classes), ("lead", float, tracks), ("alone", float, tracks)]
    return np.dtype([*whole, *parts, ("forward", float), ("both", float)])


def neighbours(stages: TrainingStages, plan: Plan) -> Iterator[Plan]:
    """Plans one change away; each keeps every layer and uses no more GPUs than there are."""
    held, sizes = plan
    ranks = len(held)
    for i, j in permutations(range(ranks), 2):
        if sizes[i] > 1:
            yield held, _changed(sizes, {i: sizes[i] - 1, j: sizes[j] + 1})
        yield _moved(held, i, j), _moved(sizes, i, j)
    for i, j in combinations(range(ranks), 2):
        swapped = _changed(held, {i: held[j], j: held[i]})
        yield swapped, sizes
        yield swapped, _changed(sizes, {i: sizes[j], j: sizes[i]})
    left = stages.classes.count - stages.composition[list(held)].sum(axis=0)
    for i in range(ranks):
        free = left + stages.composition[held[i]]
        for c in np.flatnonzero((stages.composition <= free).all(axis=1)).tolist():
            yield _changed(held, {i: c}), sizes
    for i in range(ranks):
        if ranks > 1:
            rest = held[:i] + held[i + 1 :]
            fewer = sizes[:i] + sizes[i + 1 :]
            for j in {max(0, i - 1), min(i, ranks - 2)}:
                yield rest, _changed(fewer, {j: fewer[j] + sizes[i]})
    for c in np.flatnonzero((stages.composition <= left).all(axis=1)).tolist():
        for i in range(ranks):
            if sizes[i] > 1:
                half = sizes[i] // 2
                parts = (sizes[i] - half, half)
                grown = sizes[:i] + parts + sizes[i + 1 :]
                yield held[: i + 1] + (c,) + held[i + 1 :], grown
                yield held[:i] + (c,) + held[i:], grown


def _changed(values: tuple[int, ...], to: dict[int, int]) -> tuple[int, ...]:
    return tuple(to.get(i, value) for i, value in enumerate(values))


def _moved(values: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    rest = values[:i] + values[i + 1 :]
    return rest[:j] + (values[i],) + rest[j:]
