"""Closing the gap: every pipeline that a better deployment could have, then the best division among these.

A pipeline of rate r on n GPUs is of interest if r ≥ p · n - slack (`column_generation`). A rate at which even
the cheapest pipeline is dearer than that by more than the slack is left out without a look. What is left is
listed for every mix of GPUs at once, by one of two tables over mixes that are filled layer by layer:

- by rates (`ReachableMixes`): which mixes make a pipeline of at least some rate;
- by attainable rates (`LeastPasses`): the least time of a traversal among pipelines whose stages and links
  all reach some rate.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb, prod
from typing import Any, NamedTuple

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline, Ended
from pipelab.engine.deployments.column_generation import (
    Column,
    Demand,
    Generation,
    repeated,
    whole,
)
from pipelab.engine.deployments.mixes import (
    MOST_STEPS,
    Mixes,
    best_sums,
    chosen,
    number_of_steps,
)
from pipelab.engine.deployments.pricing import Pricing, StageOf
from pipelab.engine.deployments.workloads import Offer
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.rates import StageRates
from pipelab.engine.recipes import recipes_at
from pipelab.engine.stages import OUTSIDE, Stages, stages_of
from pipelab.engine.tolerances import LAST_BITS, ONE_ANSWER
from pipelab.fields import given

MOST_MIXES = 4_000_000  # half a megabyte for each set of mixes
_FEW_MIXES = 20_000  # listed in a second
_SLACK = 1e-9  # of the price of all GPUs: the arithmetic of prices
_MOST_WAYS = 200_000  # of drawing a recipe's GPUs from its classes
_MOST_STEPS_OF_TABLE = 300_000_000  # a second for each rate
_AT_ONCE = 2000  # columns of a linear program that takes a moment: where time has run out


@dataclass(frozen=True, eq=False)
class Listed:
    """Pipelines by rate and mix.

    Attributes
    ----------
    columns : list of Column
        None is beaten by another in rate with the same GPUs or fewer.
    complete : bool
        Every pipeline that could be of interest is there, or one that beats it.
    """

    columns: list[Column]
    complete: bool


def list_all(
    offers: Sequence[Offer],
    deadline: Deadline,
    generation: Generation | None = None,
) -> Listed:
    """Every pipeline of some offers, or those that a better deployment could have."""
    counts = offers[0].rates.classes.count
    mixes, columns, complete = Mixes(counts.tolist()), [], True
    if mixes.total > MOST_MIXES:
        return Listed([], False)
    for i, offer in enumerate(offers):
        reachable = ReachableMixes(offer.rates, mixes, deadline)
        thresholds = offer.rates.thresholds
        least, highest = 0, len(thresholds) - 1
        if generation is not None:
            least, highest = _of_interest(offer, generation.pricings[i], generation)
        if highest < least:
            continue
        found, above, sure = frontier(reachable, least, highest)
        complete = complete and sure and above <= least
        columns += [Column(float(thresholds[t]), mix, i, t) for t, mix in found]
    if generation is not None:
        columns = _worthwhile(columns, generation)
    return Listed(columns, complete)


def list_attaining(
    offers: list[Offer], deadline: Deadline, generation: Generation | None = None
) -> Listed:
    """Every pipeline by its attainable rate, or those that a better deployment could have.

    Ranges of numbers in flight that may hold one are halved; the halves are added to `offers`.
    """
    mixes = Mixes(offers[0].rates.classes.count.tolist())
    if mixes.total > MOST_MIXES:
        return Listed([], False)
    enough = np.zeros(mixes.shape)
    if generation is not None and generation.prices is not None:
        price = np.tensordot(generation.prices.per_gpu, np.indices(mixes.shape), 1)
        enough = np.maximum(enough, price - generation.slack - _margin(generation))
    best, complete = BestRates.none(enough.shape), True
    waiting = list(range(len(offers))) if generation is None else list(generation.live)
    try:
        while waiting:
            i = waiting.pop()
            passes = LeastPasses(offers[i], mixes, deadline)
            if passes.steps() > _MOST_STEPS_OF_TABLE:
                return Listed([], False)
            if offers[i].last == given(offers[i].numbers).first:
                passes.look_through(i, best, enough)
            elif passes.exceed(np.maximum(best.rate, enough)):
                halves = offers[i].halves(deadline)
                waiting += range(len(offers), len(offers) + len(halves))
                offers += halves
    except Ended:
        complete = False
    columns = [
        Column(float(best.rate[mix]), mix, int(best.offer[mix]), int(best.at[mix]))
        for mix in map(tuple, best.smallest().tolist())
    ]
    return Listed(_worthwhile(columns, generation) if generation else columns, complete)


def _of_interest(offer: Offer, pricing: Pricing, generation: Generation) -> tuple[int, int]:
    """The lowest and the highest number of a rate at which some pipeline can be of interest."""
    thresholds = offer.rates.thresholds
    if generation.prices is None:
        return 0, len(thresholds) - 1
    _, high = pricing.asked
    price, _ = pricing.least(generation.prices.per_gpu, generation.deadline)
    near = np.flatnonzero(price <= high + generation.slack + _margin(generation))
    if not len(near):
        return 0, -1
    # rates of links lie between those of stages: everything above the stage rate before
    least = 0 if near[0] == 0 else int(np.searchsorted(thresholds, high[near[0] - 1], side="right"))
    highest = int(np.searchsorted(thresholds, high[near[-1]], side="right")) - 1
    return max(0, least - 1), highest


def _margin(generation: Generation) -> float:
    if generation.prices is None:
        return 0.0
    return _SLACK * float(generation.prices.per_gpu @ generation.demand.counts)


def _worthwhile(columns: list[Column], generation: Generation) -> list[Column]:
    """Those whose rate makes up for their GPUs but for the slack."""
    if generation.prices is None or not columns:
        return columns
    kept = _profit(columns, generation) >= -generation.slack - _margin(generation)
    return [columns[i] for i in np.flatnonzero(kept)]


def _most_worthwhile(columns: list[Column], generation: Generation) -> list[Column]:
    """As many as a linear program takes at once."""
    if len(columns) <= _AT_ONCE:
        return columns
    best = np.argsort(-_profit(columns, generation), kind="stable")[:_AT_ONCE]
    return [columns[i] for i in best]


def _profit(columns: list[Column], generation: Generation) -> np.ndarray:
    """By how much the rate of each exceeds the price of its GPUs."""
    rate = np.array([c.rate for c in columns])
    if generation.prices is None:
        return rate
    return rate - np.array([c.gpus for c in columns]) @ generation.prices.per_gpu


def close_gap(generation: Generation, offers: list[Offer]) -> bool:
    """List what a better deployment could have and solve the whole program; whether the best is proven.

    Where there are many mixes, first what `Generation.tighten` can do without a list.

    Raises
    ------
    Ended
        The deadline was first; what was found until then is kept.
    """
    if Mixes(generation.demand.counts.tolist()).total > _FEW_MIXES:
        generation.tighten()
        if generation.best is not None and generation.open <= max(generation.gap, ONE_ANSWER):
            return False  # the bound says it
    demand, deadline = generation.demand, generation.watched
    listed = (
        list_attaining(offers, deadline, generation)
        if offers[0].numbers is not None
        else list_all(offers, deadline, generation)
    )
    columns = listed.columns
    if deadline.reason is not None:  # a part of them: what the best of it is good for at once
        generation.columns += _most_worthwhile(columns, generation)
        generation.round_off()
    deadline.check()
    if not columns:
        return listed.complete
    mixes = Mixes(demand.counts.tolist())
    if mixes.total <= MOST_MIXES and number_of_steps(mixes, columns) <= MOST_STEPS:
        best = best_sums(mixes, columns, deadline)
        mix = _best_mix(demand, best)
        if mix is not None:
            generation.keep(chosen(mixes, columns, best, mix))
        proven = True
    else:
        run = whole(demand, columns, deadline)
        if run.x is not None:
            generation.keep(repeated(columns, run.x))
        proven = run.status in ("optimal", "infeasible")
        if run.stopped_by is not None:
            raise Ended(run.stopped_by)
    deadline.check()
    return proven and listed.complete


def _best_mix(demand: Demand, best: np.ndarray) -> tuple[int, ...] | None:
    """All GPUs; with a load, the cheapest mix that serves it, None if none does."""
    if not demand.load:
        return tuple(int(n) for n in demand.counts)
    enough = np.argwhere(best >= demand.load * (1 - 1e-12))
    if not len(enough):
        return None
    cost = enough @ demand.price
    return tuple(enough[cost.argmin()].tolist())


@dataclass(frozen=True, eq=False)
class Reachable:
    """The mixes that make a pipeline of at least one rate.

    Attributes
    ----------
    ends : int
        A set of mixes (`Mixes`) that make a pipeline: at least those with which some pipeline
        uses each GPU of the mix.
    complete : bool
        False where some stages were left out, as there were too many: then a mix that is missing
        may reach the rate nevertheless.
    """

    ends: int
    complete: bool


@dataclass(eq=False)
class ReachableMixes:
    """Which mixes of GPUs make a pipeline of at least some rate: all of them at once, layer by layer.

    At a rate t the recipes (`aggregated.recipes`) say which stages reach it. After l layers a pipeline
    is in a state of the order (which classes may follow) and has used some mix. So a table with a set of
    mixes for every (l, state), filled from the first layer to the last, ends with every mix that reaches t.

    Attributes
    ----------
    rates : StageRates
    mixes : Mixes
        Of the same classes.
    """

    rates: StageRates
    mixes: Mixes
    deadline: Deadline = NEVER

    def at(self, index: int) -> Reachable:
        """The mixes of rate number `index`."""
        stages, ends = self._stages(index), 0
        for mixes in self._filled(stages)[-1].values():
            ends |= mixes
        return Reachable(ends, not stages.links.narrowed and self._few(stages))

    def stages(self, index: int, mix: tuple[int, ...]) -> list[StageOf]:
        """The stages of a pipeline of at least rate number `index` that uses just this mix."""
        found = self._stages(index)
        filled, ways = self._filled(found), self._ways(found)
        layers = len(filled) - 1
        state = next(s for s, mixes in filled[layers].items() if self.mixes.has(mixes, mix))
        stages: list[StageOf] = []
        while layers:
            layers, state, stage = self._step_back(found, filled, ways, layers, state, mix)
            mix = tuple(n - m for n, m in zip(mix, stage[1], strict=True))
            stages.append(stage)
        return stages[::-1]

    def _step_back(
        self,
        found: Stages,
        filled: list[dict[int, int]],
        ways: list[tuple[int, list[tuple[int, ...]], np.ndarray]],
        layers: int,
        state: int,
        mix: tuple[int, ...],
    ) -> tuple[int, int, StageOf]:
        """A last stage with which so many layers, this state and this mix are reached, and from where."""
        links = found.links
        for before in range(layers):
            for link_kind, drawn, spans in ways:
                if links.leave[link_kind] != state or not spans[before, layers - before - 1]:
                    continue
                for gpus in drawn:
                    left = [n - m for n, m in zip(mix, gpus, strict=True)]
                    if min(left) < 0:
                        continue
                    for old, mixes in filled[before].items():
                        if links.follows(old, link_kind) and self.mixes.has(mixes, left):
                            return before, old, (layers - before, gpus)
        raise AssertionError("a mix was reached from nowhere")

    def _filled(self, found: Stages) -> list[dict[int, int]]:
        """The set of mixes by number of layers and how the last stage is left."""
        links = found.links
        layers = self.rates.problem.model.layers
        ways = self._ways(found)
        only_longest = links.free and self.longest_is_best
        sets: list[dict[int, int]] = [defaultdict(int) for _ in range(layers + 1)]
        sets[0][OUTSIDE] = self.mixes.none
        for at in range(layers):
            self.deadline.check()
            for link_kind, drawn, spans in ways:
                here = 0
                for state, mixes in sets[at].items():
                    if links.follows(state, link_kind):
                        here |= mixes
                sizes = np.flatnonzero(spans[at, : layers - at]) + 1
                if not here or not len(sizes):
                    continue
                reached = 0
                for gpus in drawn:
                    reached |= self.mixes.more(here, gpus)
                state = int(links.leave[link_kind])
                for size in sizes[-1:] if only_longest else sizes:
                    sets[at + size][state] |= reached
        return sets

    def _stages(self, index: int) -> Stages:
        return recipes_at(self.rates, float(self.rates.thresholds[index]), deadline=self.deadline)

    def _ways(self, found: Stages) -> list[tuple[int, list[tuple[int, ...]], np.ndarray]]:
        """Of every recipe: link kind, possible GPUs by class, and which spans it is for by first layer and size."""
        kind = runs_of(self.rates.problem.model).kind
        few = self._few(found)
        return [
            (link_kind, list(self._drawn(found.draws(r), few)), found.possible[r, kind])
            for r, link_kind in enumerate(found.kind.tolist())
        ]

    def _few(self, found: Stages) -> bool:
        """Whether all ways to draw GPUs can be listed."""
        return _number_of_ways(found) <= _MOST_WAYS

    def _drawn(
        self, draws: list[tuple[int, tuple[int, ...]]], every: bool
    ) -> Iterator[tuple[int, ...]]:
        """GPUs of each class that the draws of a recipe can take; of one class each unless `every`."""
        seen = set()
        count = self.rates.classes.count
        choices = [
            combinations_with_replacement(own, n) if every else [(a,) * n for a in own]
            for n, own in draws
        ]
        for drawn in product(*choices):
            gpus = [0] * len(count)
            for a in (a for part in drawn for a in part):
                gpus[a] += 1
            if tuple(gpus) not in seen and (np.array(gpus) <= count).all():
                seen.add(tuple(gpus))
                yield tuple(gpus)

    @cached_property
    def longest_is_best(self) -> bool:
        """Whether what a stage can hold at a rate it can hold in part, from any layer on.

        Then, where links do not bind, only the longest stage from a layer on is of interest.
        """
        kind, rate = runs_of(self.rates.problem.model).kind, self.rates.rate
        layers, seen = len(kind), set[tuple[int, int]]()
        for size in range(2, layers + 1):
            starts = np.arange(layers - size + 1)
            whole = kind[starts, size - 1]
            for part in (kind[starts, size - 2], kind[starts + 1, size - 2]):
                seen.update(zip(whole.tolist(), part.tolist(), strict=True))
        pairs: Any = sorted(seen)
        wholes, parts = np.array(pairs, dtype=int).reshape(-1, 2).T
        return bool((rate[:, parts] >= rate[:, wholes]).all())


def _number_of_ways(found: Stages) -> int:
    return sum(
        prod(comb(len(own) + n - 1, n) for n, own in found.draws(r)) for r in range(len(found.kind))
    )


def frontier(
    reachable: ReachableMixes, least: int = 0, highest: int | None = None
) -> tuple[list[tuple[int, tuple[int, ...]]], int, bool]:
    """Every (rate, mix) such that the mix reaches the rate and no smaller mix does, nor this one a higher rate.

    What a mix reaches at a rate it reaches at every lower one. So where two rates have the same
    mixes, all rates between them do, and nothing has to be computed there.

    Parameters
    ----------
    least, highest : int
        Rates below and above these numbers are not looked at: what reaches more than the highest
        counts as that.

    Returns
    -------
    columns : list of (int, tuple of int)
        Number of the rate, and the mix; the highest rates first.
    above : int
        Rates from this number on are done; equal to `least` unless the deadline was first.
    complete : bool
        No stages were left out.
    """
    above = len(reachable.rates.thresholds) if highest is None else highest + 1
    closed: dict[int, int] = {above: 0}
    found: list[tuple[int, tuple[int, ...]]] = []
    complete = True

    def closure(index: int) -> int:
        nonlocal complete
        if index not in closed:
            at = reachable.at(index)
            complete = complete and at.complete
            closed[index] = reachable.mixes.at_least(at.ends)
        return closed[index]

    try:
        while above > least:
            done = closed[above]

            def differs(index: int, done: int = done) -> bool:
                return closure(index) != done

            if not differs(least):
                above = least
                break
            low, high = _bracket(differs, least, above - 1)
            while low < high:  # the highest rate with more mixes than `above`
                middle = (low + high + 1) // 2
                if differs(middle):
                    low = middle
                else:
                    high = middle - 1
            new = reachable.mixes.smallest(closure(low)) & ~done
            found += [(low, tuple(mix)) for mix in reachable.mixes.listed(new).tolist()]
            above = low
            closed = {i: mixes for i, mixes in closed.items() if i <= above}
    except Ended:
        pass
    return found, above, complete


def _bracket(true_at: Callable[[int], bool], least: int, high: int) -> tuple[int, int]:
    """Down from `high` in steps 1, 2, 4, … to the first number at which something is true."""
    step, low = 1, high
    while low > least and not true_at(low):
        high, low, step = low - 1, max(least, low - step), 2 * step
    return low, high


@dataclass(eq=False)
class LeastPasses:
    """The attainable rates of pipelines of one offer, for every mix of GPUs at once.

    With n in flight a full pipeline yields min(r, n·w / L) tokens/s: r is the rate of its slowest stage
    or link, w the tokens of a microbatch, L the time of a traversal. Let L(t, mix) be the least time of a
    traversal among pipelines on GPUs of the mix, or fewer, whose stages and links all reach t. Then the
    best rate of a mix is

        max over t of min(t, n·w / L(t, mix))

    where t runs over the rates of stages and links: the best pipeline has r = t for one of them, and a
    pipeline that has L(t, mix) yields min(t, n·w / L(t, mix)) or more. L(t, ·) is a table over mixes,
    filled like that of `ReachableMixes`, with a least time in place of a bit.

    As t rises L(t, mix) rises. So between two rates a < b whose tables are known no mix yields more than
    min(b, n·w / L(a, mix)), and ranges in which that is no more than what is known are left out.

    Attributes
    ----------
    offer : Offer
        Over the classes of the cluster, not over families.
    mixes : Mixes
        Of the same classes.
    """

    offer: Offer
    mixes: Mixes
    deadline: Deadline = NEVER

    def at(self, index: int) -> np.ndarray:
        """The least time of a pass at rate number `index`, on each mix or fewer GPUs; in seconds, of `mixes.shape`."""
        _, tables = self._filled(index)
        least = tables[-1].min(axis=0, initial=np.inf)
        for axis in range(least.ndim):
            np.minimum.accumulate(least, axis=axis, out=least)
        return least

    def rates(self, index: int, least: np.ndarray) -> np.ndarray:
        """What pipelines yield that have these least times at rate number `index`; 0 where there is none."""
        tokens = self.offer.last * self.offer.problem.workload.tokens
        return np.minimum(self.offer.rates.thresholds[index], tokens / least)

    def look_through(self, number: int, best: "BestRates", enough: np.ndarray) -> None:
        """Enter the best rate of every mix, halving the ranges of rates that may hold more than is known.

        Parameters
        ----------
        number : int
            Of the offer.
        best : BestRates
            What is known; changed in place.
        enough : float array over mixes
            Rates up to these need not be found.

        Raises
        ------
        Ended
        """

        def look(at: int) -> np.ndarray:
            least = self.at(at)
            rate = self.rates(at, least)
            better = rate > best.rate
            best.rate[better], best.offer[better], best.at[better] = rate[better], number, at
            return least

        for _ in self._halved(look, lambda: np.maximum(best.rate, enough)):
            pass

    def exceed(self, known: np.ndarray) -> bool:
        """Whether a mix may yield more than what is known of it."""
        above = False

        def look(at: int) -> np.ndarray:
            nonlocal above
            least = self.at(at)
            above |= bool((self.rates(at, least) > known * (1 + LAST_BITS)).any())
            return least

        return any(above for _ in self._halved(look, lambda: known)) or above

    def _halved(
        self, look: Callable[[int], np.ndarray], known: Callable[[], np.ndarray]
    ) -> Iterator[None]:
        """Look at rates until no range between two of them may hold more than what is known."""
        ranges = [(0, len(self.offer.rates.thresholds), look(0))]
        while ranges:
            yield
            first, end, least = ranges.pop()
            if end - first < 2:
                continue
            most = self.rates(end - 1, least)
            if (most > known() * (1 + LAST_BITS)).any():
                middle = (first + end) // 2
                ranges += [(first, middle, least), (middle, end, look(middle))]

    def steps(self) -> int:
        """How much one rate takes: numbers of its tables times the stages that may end at each."""
        found, layers = self._stages(0), self.offer.problem.model.layers
        return (layers + 1) * layers // 2 * len(found.gpus) * self.mixes.total

    def stages(self, index: int, mix: tuple[int, ...]) -> list[StageOf]:
        """The stages of a pipeline of the least time that uses just this mix."""
        found, tables = self._filled(index)
        kind, at = runs_of(self.offer.problem.model).kind, len(tables) - 1
        group = min(range(len(tables[at])), key=lambda g: tables[at][(g, *mix)])
        stages: list[StageOf] = []
        while at:
            begin, before, gpus = self._step_back(found, tables, kind, at, group, mix)
            stages.append((at - begin, gpus))
            mix = tuple(n - m for n, m in zip(mix, gpus, strict=True))
            at, group = begin, before
        return stages[::-1]

    def _step_back(
        self,
        stages: Stages,
        tables: list[np.ndarray],
        kind: np.ndarray,
        at: int,
        group: int,
        mix: tuple[int, ...],
    ) -> tuple[int, int, tuple[int, ...]]:
        """Where the last stage begins, how the stage before it is left, and its GPUs."""
        whole, best, links = tables[at][(group, *mix)], (np.inf, 0, 0, ()), stages.links
        for c in np.flatnonzero(links.leave[stages.kind] == group):
            left = np.array(mix) - stages.gpus[c]
            if (left < 0).any():
                continue
            for begin in range(at):
                span = kind[begin, at - begin - 1]
                took = stages.seconds[c, span] if stages.possible[c, span] else np.inf
                if begin:
                    hop = links.seconds[:, links.enter[stages.kind[c]]]
                    entries = tables[begin][(slice(None), *left)] + hop
                    before, so_far = int(entries.argmin()), float(entries.min(initial=np.inf))
                else:
                    before, so_far = 0, np.inf if left.any() else 0.0
                off = abs(so_far + took - whole)
                if off < best[0]:
                    best = off, begin, before, tuple(stages.gpus[c].tolist())
        return best[1:]

    def _stages(self, index: int) -> Stages:
        self.deadline.check()
        floor, table = float(self.offer.rates.thresholds[index]), self.offer.instance
        return stages_of(table, table.useful(table.rate >= floor), table.link >= floor, timed=True)

    def _filled(self, index: int) -> tuple[Stages, list[np.ndarray]]:
        """The least time of the first 0, 1, … M layers, by how the last stage is left and by mix."""
        stages = self._stages(index)
        links, enter = stages.links, stages.links.enter[stages.kind].tolist()
        layers, shape = self.offer.problem.model.layers, self.mixes.shape
        kind = runs_of(self.offer.problem.model).kind
        tables = [np.full((len(links.seconds), *shape), np.inf) for _ in range(layers + 1)]
        started = np.full(shape, np.inf)
        started[(0,) * len(shape)] = 0.0
        room = [_room(gpus, shape) for gpus in stages.gpus.tolist()]
        for at in range(layers):
            entry: dict[int, np.ndarray] = {}
            for c, entered in enumerate(enter):
                self.deadline.check()
                if entered not in entry:
                    hop = links.seconds[:, entered]
                    entry[entered] = started if not at else _least_entry(tables[at], hop)
                to, of = room[c]
                span = kind[at, : layers - at]
                left = links.leave[stages.kind[c]]
                for size in np.flatnonzero(stages.possible[c, span]):
                    here = tables[at + size + 1][left][to]
                    took = stages.seconds[c, span[size]]
                    np.minimum(here, entry[entered][of] + took, out=here)
        return stages, tables


def _least_entry(table: np.ndarray, hop: np.ndarray) -> np.ndarray:
    """The least time of what comes before a stage, the hop to it included; of the shape of mixes."""
    return (table + hop.reshape(-1, *(1,) * (table.ndim - 1))).min(axis=0)


def _room(gpus: Sequence[int], shape: tuple[int, ...]) -> tuple[tuple, tuple]:
    """Where mixes with these GPUs more are, and those without them."""
    to = tuple(slice(n, None) for n in gpus)
    return to, tuple(slice(None, size - n) for n, size in zip(gpus, shape, strict=True))


class BestRates(NamedTuple):
    """The best rate of every mix, and what has it.

    Attributes
    ----------
    rate : float array over mixes
        In tokens/s; 0 where no pipeline fits.
    offer, at : int arrays over mixes
        The workload and the number of the rate at which the best was found; -1 where none fits.
    """

    rate: np.ndarray
    offer: np.ndarray
    at: np.ndarray

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "BestRates":
        """Nothing is known yet."""
        return cls(np.zeros(shape), np.full(shape, -1), np.full(shape, -1))

    def smallest(self) -> np.ndarray:
        """The mixes whose best rate no mix with a GPU less has; shape (number, classes)."""
        fewer = np.zeros_like(self.rate)
        for axis in range(fewer.ndim):
            to = [slice(None)] * fewer.ndim
            of = list(to)
            to[axis], of[axis] = slice(1, None), slice(None, -1)
            np.maximum(fewer[tuple(to)], self.rate[tuple(of)], out=fewer[tuple(to)])
        return np.argwhere(self.rate > fewer * (1 + LAST_BITS))
