"""The least step time under one published rule: tables of bounds, and placements in their order.

A node is the first stages of a placement: what they bound by themselves, and what the rest must add
to them (`Suffixes`). Many nodes of least bound are extended at a time, and what is complete is
simulated, until the bound meets the best. A better placement is made better still step by step:
layers moved, stages swapped, GPUs exchanged, put in and left out.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.tolerances import PROVEN_WITHIN
from pipelab.engine.training.bounds import (
    REAL,
    Batch,
    Order,
    Shape,
    Suffixes,
    own_terms,
    run_bound,
    tables_of,
)
from pipelab.engine.training.stages import BIG, Stages, least_slowest, merged
from pipelab.fields import given

MOST_NODES = 2_500_000
_NODES_AT_ONCE = 256
_LEAVES_AT_ONCE = 1024
_SIMULATED = 256  # neighbours of least bound, per round
_FIRST_LIMIT = 3.0  # times the least time that the slowest stage may have
_IMPROVED = 2  # of the first placements
_TIGHTER = 0.95  # a table with a limit so much lower saves more time than it takes
_MOST_CELLS = 8_000_000  # of one level of a table of suffixes: more take seconds

Plan = tuple[tuple[int, ...], tuple[int, ...]]  # compositions, and layers of every stage


def _node(tracks: int, classes: int) -> np.dtype:
    """The first stages of a placement.

    On how many ranks, how many are left; the state of the tables; the last stage's composition, where
    it ends, and the node before it; GPUs used, by class; when the next stage may begin and what all
    bound, by track; of the last stage its forward, and it with what is run before its gradient is
    sent on.
    """
    whole = [(name, np.int32) for name in ("ranks", "left", "state", "last", "first", "before")]
    parts = [("used", np.int16, classes), ("lead", float, tracks), ("own", float, tracks)]
    return np.dtype([*whole, *parts, ("forward", float), ("both", float)])


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
        self.count = 0
        self.nodes: Any = np.zeros(1024, dtype=_node(tracks, len(self.stages.classes)))
        self.runs = self.shape.windows and bool((self.stages.hop > 0).any())
        self._roots()

    def _roots(self) -> None:
        for ranks, table in self.tables.items():
            least = table.whole(ranks)
            rows = np.flatnonzero(least < min(REAL, self._useful))
            roots: Any = np.zeros(len(rows), dtype=self.nodes.dtype)
            roots["ranks"] = roots["left"] = ranks
            roots["state"], roots["last"], roots["before"] = rows, -1, -1
            self._push(least[rows], roots)

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
            by_place[self.nodes["ranks"][node], self.nodes["left"][node]].append(node)
        for (ranks, left), some in by_place.items():
            self._extend_level(int(ranks), int(left), np.array(some))

    def _extend_level(self, ranks: int, left: int, nodes: np.ndarray) -> None:
        """Put one more stage behind these, every one that may come next."""
        suffixes, stages = self.tables[ranks], self.stages
        order = suffixes.orders[ranks]
        rank, parts = ranks - left, suffixes.parts(suffixes.exact(ranks, ranks - left))
        onto, groups, last_layer = suffixes.onto[left], suffixes.groups, stages.layers
        size, earlier = np.arange(suffixes.most_layers), self._earlier(rank, nodes)
        every = self.nodes[nodes]
        for c, counts in enumerate(stages.composition):
            fits = (every["used"] + counts <= stages.classes.count).all(axis=1)
            rest = onto[every["state"], groups.of[c]]
            here = fits & (rest >= 0)
            if not here.any():
                continue
            some, rest = every[here], rest[here]
            first = some["first"]
            after = suffixes.after(left, rest, groups.onward[c])
            after = after.take(np.arange(len(rest)), first)
            mine = parts.take(np.full(len(some), c), first)
            beyond = None if after.link is None else after.beyond
            own = own_terms(self.shape, mine, order.window[rank], beyond, after.link)
            if rank:
                messages = np.array(self.shape.hops) * stages.hop[some["last"], c][:, None]
                lead = (some["lead"] + messages).T[..., None]
            else:
                lead = np.zeros((len(self.shape.hops), len(some), len(size)))
                if self.shape.split:
                    lead[-1] = mine.weight
            own = np.maximum(some["own"].T[..., None], lead + own)
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
            longer: Any = np.zeros(len(at), dtype=self.nodes.dtype)
            longer["ranks"], longer["left"], longer["state"] = ranks, left - 1, rest[at]
            longer["last"], longer["first"], longer["before"] = c, end[at, n], nodes[here][at]
            longer["used"] = some["used"][at] + counts
            longer["lead"], longer["own"] = lead[:, at, n].T, own[:, at, n].T
            longer["forward"], longer["both"] = mine.forward[at, n], mine.both[at, n]
            self._push(bound[at, n], longer)

    def _earlier(self, rank: int, nodes: np.ndarray) -> Sequence[tuple[np.ndarray, ...]]:
        """Of every earlier stage of these nodes: when it may begin, and its times."""
        found = []
        for _ in range(rank if self.runs else 0):
            some = self.nodes[nodes]
            found.append((some["lead"][:, -1] - some["both"], some["forward"], some["both"]))
            nodes = some["before"]
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
            some = self.nodes[nodes]
            compositions[:, i], cuts[:, i + 1], nodes = some["last"], some["first"], some["before"]
        return Batch(compositions, cuts)


def first_plans(stages: Stages, orders: dict[int, Order]) -> Iterator[Plan]:
    """First placements: stages of equal size on GPUs by speed, cut to be equally busy.

    Some that fit, if these do: of every size of a stage, with the slower classes left out or not.
    """
    classes, size = stages.classes, stages.composition.sum(axis=1)
    of_one_class = (stages.composition > 0).sum(axis=1) == 1
    mode = stages.costs[stages.modes[0]]
    pace = mode[:3].sum(axis=0).mean(axis=1)
    seen = set()
    for most in sorted(set(size.tolist())):
        by_class = []  # the largest stages up to this size
        for a, count in enumerate(classes.count.tolist()):
            own = np.flatnonzero(of_one_class & (stages.composition[:, a] > 0) & (size <= most))
            if len(own):
                c = int(own[np.argmax(size[own])])
                by_class.append((float(pace[c]), [c] * (count // int(size[c]))))
        by_class.sort()
        for kept in range(len(by_class), 0, -1):
            for step in (1, -1):
                chosen = [c for _, own in by_class[:kept][::step] for c in own]
                while chosen and len(chosen) not in orders:
                    chosen = chosen[:-1] if step > 0 else chosen[1:]
                if chosen and tuple(chosen) not in seen:
                    seen.add(tuple(chosen))
                    sizes = best_cut(stages, orders[len(chosen)], chosen)
                    if sizes is not None:
                        yield tuple(chosen), sizes


def best_cut(stages: Stages, order: Order, compositions: list[int]) -> tuple[int, ...] | None:
    """Layers of every stage, for the least of the simplest bounds; None where none fits."""
    shape, layers, ranks = Shape.of(order), stages.layers, len(compositions)
    hops = np.array(shape.hops)
    start, size = np.indices((layers, layers))
    inside = start + size + 1 <= layers
    kind = np.where(inside, stages.runs.kind, 0)
    value = np.full((len(hops), layers + 1), BIG)
    value[:, layers] = 0.0
    cuts = np.zeros((ranks, layers), dtype=int)
    for i in reversed(range(ranks)):
        c = compositions[i]
        parts = shape.parts(stages.times(order.held[i], order.chunks)).take(c, kind)
        after = value.copy()
        if i < ranks - 1:
            after += (hops * min(BIG, float(stages.hop[c, compositions[i + 1]])))[:, None]
        end = np.minimum(start + size + 1, layers)
        beyond = np.where(inside, after[:, end], BIG)
        found = np.maximum(np.where(inside, parts.busy, BIG), parts.lead + beyond)
        best = np.argmin(found.max(axis=0), axis=1)
        cuts[i] = best + 1
        value = np.full((len(hops), layers + 1), BIG)
        value[:, :layers] = found[:, np.arange(layers), best]
    if value[:, 0].max() >= REAL:
        return None
    sizes, layer = [], 0
    for i in range(ranks):
        sizes.append(int(cuts[i, layer]))
        layer += sizes[-1]
    return tuple(sizes)


def improved(
    stages: Stages,
    orders: dict[int, Order],
    plan: Plan,
    seconds: float,
    deadline: Deadline,
) -> tuple[Plan, float]:
    """The best that a walk from neighbour to better neighbour ends at; stopped early, the best so far."""
    while deadline.reason is None:
        best = _best_neighbour(stages, orders, plan, seconds, deadline)
        if best is None:
            break
        plan, seconds = best
    return plan, seconds


def _best_neighbour(
    stages: Stages, orders: dict[int, Order], plan: Plan, seconds: float, deadline: Deadline
) -> tuple[Plan, float] | None:
    by_ranks: dict[int, list[Plan]] = defaultdict(list)
    for each in set(neighbours(stages, plan)):
        if len(each[0]) in orders:
            by_ranks[len(each[0])].append(each)
    found: tuple[Plan, float] | None = None
    useful = seconds * (1 - PROVEN_WITHIN)
    for ranks, plans in sorted(by_ranks.items()):
        plans.sort()
        batch = batch_of(plans)
        bound = batch.bounds(stages, orders[ranks])
        nearest = np.argsort(bound, kind="stable")[:_SIMULATED]
        nearest = nearest[bound[nearest] < useful]
        if not len(nearest) or deadline.reason is not None:
            continue
        value = batch.take(nearest).step_times(stages, orders[ranks])
        least = int(np.argmin(value))
        if value[least] < useful:
            useful = float(value[least])
            found = plans[int(nearest[least])], useful
    return found


def batch_of(plans: list[Plan]) -> Batch:
    """Plans on equally many ranks as arrays."""
    compositions = np.array([plan[0] for plan in plans])
    sizes = np.array([plan[1] for plan in plans])
    return Batch(compositions, np.concatenate([sizes[:, :1] * 0, sizes.cumsum(axis=1)], axis=1))


def neighbours(stages: Stages, plan: Plan) -> Iterator[Plan]:
    """Plans one change away; each keeps every layer and uses no more GPUs than there are."""
    held, sizes = plan
    ranks = len(held)
    for i in range(ranks):
        for j in range(ranks):
            if i != j and sizes[i] > 1:
                yield held, _changed(sizes, {i: sizes[i] - 1, j: sizes[j] + 1})
    for i in range(ranks):
        for j in range(i):
            swapped = _changed(held, {i: held[j], j: held[i]})
            yield swapped, sizes
            yield swapped, _changed(sizes, {i: sizes[j], j: sizes[i]})
    for i in range(ranks):
        for j in range(ranks):
            if i != j:
                yield _moved(held, i, j), _moved(sizes, i, j)
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


@dataclass
class Best:
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

    def keep(self, rule: str, plan: Plan, seconds: float) -> None:
        """Take it if it is better."""
        if seconds < self.seconds:
            self.seconds, self.rule, self.plan = seconds, rule, plan
            if self.on_change is not None:
                self.on_change()


@dataclass
class RuleSearch:
    """The state of one rule's search.

    Attributes
    ----------
    bound : float
        No placement under this rule has less than this or the best, in seconds; infinite where
        there is none.
    nodes, simulated, states : int
        Of the last search and its tables.
    stopped : str or None
        What ended it early.
    """

    name: str
    stages: Stages
    orders: dict[int, Order]
    best: Best
    deadline: Deadline
    gap: float = 0.0
    bound: float = 0.0
    nodes: int = 0
    simulated: int = 0
    states: int = 0
    stopped: str | None = None
    _search: Search | None = field(default=None, repr=False)
    _beyond: float = field(default=np.inf, repr=False)

    def rounds(self) -> Iterator[None]:
        """Search in rounds until nothing better can be left; stopped early, with what is known then."""
        try:
            for _ in self._rounds():
                self._note()
                yield
        except Ended as end:
            self.stopped = end.reason
        self._note()
        self._search = None  # and its tables

    def _rounds(self) -> Iterator[None]:
        self.deadline.check()
        held = [(each, o.chunks) for o in self.orders.values() for each in o.held]
        slowest = least_slowest(self.stages, held)
        if slowest == np.inf:
            self.bound = np.inf
            return
        microbatches = next(iter(self.orders.values())).schedule.microbatches
        self.bound = max(self.bound, microbatches * slowest)
        self._first()
        beyond = min(_FIRST_LIMIT * slowest * microbatches, self.best.seconds)
        while True:
            # With a stage that takes longer than the table's, a step is no shorter than this.
            search = self._table(beyond / microbatches, beyond)
            if search.bound < beyond:
                search.dive()
                if self.best.seconds < beyond * _TIGHTER:
                    # What exceeds the best need not be in the table, and the rest bounds more.
                    beyond = self.best.seconds
                    search = self._table(beyond / microbatches, beyond)
                yield
                self.stopped = yield from search.rounds(beyond)
                self._note()
            if self.stopped or self.best.seconds <= beyond or beyond == np.inf:
                break
            wider = beyond * 4 if beyond < 100 * slowest * microbatches else np.inf
            beyond = min(wider, self.best.seconds)
        if self.best.seconds == np.inf and not self.stopped:
            self.bound = np.inf

    def _first(self) -> None:
        """Placements to begin with: by size of stage, and the best of the rules before."""
        plans = list(first_plans(self.stages, self.orders))
        if self.best.plan is not None and len(self.best.plan[0]) in self.orders:
            plans.append(self.best.plan)
        found = []
        for plan in plans:
            order = self.orders[len(plan[0])]
            self.deadline.check()
            found.append((float(batch_of([plan]).step_times(self.stages, order)[0]), plan))
        for seconds, plan in sorted(found)[:_IMPROVED]:
            if seconds < np.inf:
                self._keep_improved(plan, seconds)

    def _table(self, limit: float, beyond: float) -> Search:
        """A search of all placements whose stages keep to the limit."""
        groups = merged(self.stages, _MOST_CELLS // self.stages.layers)

        def made(orders: dict[int, Order]) -> Suffixes:
            return Suffixes(self.stages, orders, groups, limit, self.deadline, self.best.seconds)

        for tables in tables_of(self.orders, made):
            self._search = Search(tables, self.best.seconds, self._keep, self.deadline, self.gap)
            self._beyond = beyond
            self._search.bound = self._search.nearest
            self.states = sum(len(s) for each in set(tables.values()) for s in each.state)
            self._note()
        return given(self._search)

    def _note(self) -> None:
        """What the table that is searched has proven by now."""
        search = self._search
        if search is not None:
            search.best = min(search.best, self.best.seconds)
            self.bound = max(self.bound, min(search.bound, self._beyond, self.best.seconds))
            self.nodes, self.simulated = search.count, search.simulated

    def _keep(self, compositions: np.ndarray, cuts: np.ndarray, seconds: float) -> None:
        """Take a placement, and what small changes make of it."""
        self._keep_improved((tuple(compositions.tolist()), tuple(np.diff(cuts).tolist())), seconds)

    def _keep_improved(self, plan: Plan, seconds: float) -> None:
        self.best.keep(self.name, plan, seconds)
        plan, seconds = improved(self.stages, self.orders, plan, seconds, self.deadline)
        self.best.keep(self.name, plan, seconds)
        self._note()
