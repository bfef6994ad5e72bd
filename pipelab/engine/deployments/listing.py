"""Every pipeline that a better deployment could have, by labels from the last layer to the first.

At prices p of GPUs, a pipeline of rate r on n GPUs is of interest if r ≥ p · n - slack
(`column_generation`). A *label* is the end of a pipeline, from some boundary between layers on: its GPUs,
their price, its rate so far, its time so far and how it may be entered. It is extended by every stage that
may come before it (a label-setting algorithm for the shortest path with limited resources; R. Baldacci,
N. Christofides and A. Mingozzi, 2008, list the columns of their master program so). Two rules keep
labels few:

- What the layers before a boundary cost at least at every rate is known (`pricing`, numbers of GPUs aside). A
  label whose rate cannot make up for its price and that is dropped.
- Of labels with the same GPUs, entered in the same way, one that is neither faster nor sooner than another is dropped.

Where requests have limits on time (`timing`), a label has a second time, which is limited, and remembers how the last
stage is left, for the hop back. Where an engine fills a pipeline by stages, a label counts these: they limit what is in
flight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.paths import StageOf, Ways, ways_of
from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.tolerances import LAST_BITS

MOST_LABELS = 10_000  # at one boundary
_WAITING_PER_KEPT_LABEL = 10  # labels that may wait at a boundary before some are dropped
_MOST_COMPOSITIONS = 1_000  # from which pipelines are listed
_CELLS_AT_ONCE = 1_000_000
_MOST_PIPELINES_COMPARED = 4_000  # with all faster ones
_LABELS_COMPARED_AT_ONCE = 128  # with all before them


class ListedPipeline(NamedTuple):
    """A pipeline by its classes: the rate it counts with, its GPUs of each class, and its stages."""

    rate: float
    gpus: tuple[int, ...]
    stages: tuple[StageOf, ...]


class _Labels(NamedTuple):
    """Ends of pipelines; N of them.

    Attributes
    ----------
    gpus : int array, shape (N, A)
        Of each class.
    price, rate, seconds, late : float arrays, shape (N,)
        Of the GPUs; of the slowest stage or link; of a traversal, with the hop back once it is whole; and as the
        limit on time counts it (0 where there is none).
    reached : int array, shape (N,)
        The last of the rates that are asked which `rate` reaches.
    entered, left : int arrays, shape (N,)
        The ways in which the first stage is entered and the last is left (0 where there is no hop back).
    stages : int array, shape (N,)
        Number of stages; 0 where it does not matter.
    row, rest : int arrays, shape (N,)
        The first stage's row of the table, and the number of the label that it was put before.
    """

    gpus: np.ndarray
    price: np.ndarray
    rate: np.ndarray
    seconds: np.ndarray
    late: np.ndarray
    reached: np.ndarray
    entered: np.ndarray
    left: np.ndarray
    stages: np.ndarray
    row: np.ndarray
    rest: np.ndarray

    def part(self, which: np.ndarray | slice) -> "_Labels":
        return _Labels(*(field[which] for field in self))


class Listing:
    """The labels of one offer at some prices.

    Parameters
    ----------
    offer : Offer
    prices : float array, shape (A,)
        Of a GPU of each class, tokens/s.
    slack : float
        By how much the rate of a pipeline may fall short of the price of its GPUs, tokens/s.
    most : int
        Labels kept at each boundary, those that can make up most.
    per_second : sequence of float
        Prices of a second, tokens/s, at which what the layers before cost is known too.
    counts : int array, shape (A,), optional
        The most GPUs of each class; by default all.

    Attributes
    ----------
    covered : float
        Every pipeline that falls short of the price of its GPUs by less is found, or one that beats it: the slack,
        unless labels were left out.
    steps : int
        Extensions of labels that were looked at.
    """

    def __init__(
        self,
        offer: Offer,
        prices: np.ndarray,
        slack: float,
        deadline: Deadline,
        most: int = MOST_LABELS,
        per_second: Sequence[float] = (),
        counts: np.ndarray | None = None,
    ) -> None:
        self.offer, self.table, self.deadline, self.most = offer, offer.table, deadline, most
        self.counts = self.table.classes.count if counts is None else counts
        few = len(self.table.composition) <= _MOST_COMPOSITIONS
        self.rows = np.arange(len(self.table.composition)) if few else offer.rows
        self.slack, self.prices = slack, prices
        self.gpus = self.table.composition[self.rows]
        timing = offer.timing
        back = None if timing is None else timing.back
        self.ways = ways_of(self.table.link, self.table.hop, self.gpus, back)
        known = few and self.ways is not None and not self.table.pure
        self.covered = slack if known else -np.inf
        self.price = self.gpus @ prices
        self.rate, self.took = self.table.rate[self.rows], self.table.seconds[self.rows]
        paths, asked = offer.paths[1], np.arange(len(offer.asked[0]))
        to_go = paths.paid(prices, 0.0, asked, deadline)
        # by boundary: what the work of the layers before costs at least, by the rate, and what is left of the rate at
        # most; of layers that cost more than they yield a rate of 0 leaves most
        work = np.linspace(0, 1 / offer.most_work(prices), len(to_go))
        self.gain = np.maximum(1 - work, 0)
        to_go = np.maximum(to_go, work[:, None] * offer.asked[1])
        # by boundary and rate reached: how much more than their rate the layers before cost at least
        self.short = np.minimum.accumulate(to_go - offer.asked[1], axis=1)
        # the least with a price κ of a second, less κ times the time that there is
        self.with_time = []
        for kappa in filter(None, per_second if offer.longest < np.inf else ()):
            timed = paths.paid(prices, kappa, asked, deadline) - kappa * offer.time_limit
            short = np.minimum.accumulate(timed - offer.asked[1], axis=1)
            self.with_time.append((kappa, short))
        free = np.zeros_like(prices)
        self.soonest = paths.paid(free, 1.0, asked[:1], deadline)[:, 0]
        if timing is not None:
            self.late, self.after = timing.late[self.rows], timing.after[self.rows]
            late = replace(paths, seconds=timing.late[offer.rows])
            self.soonest_late = late.paid(free, 1.0, asked[:1], deadline)[:, 0]
        self.index = self._reached(self.rate)
        self.by_stages = offer.problem.costs.filling == "by_stages"
        self.steps = 0
        self._first: list[np.ndarray] = []  # of all labels by number: the first stage's row,
        self._rest: list[np.ndarray] = []  # and the label that it was put before

    def pipelines(self) -> list[ListedPipeline]:
        """Return the pipelines of interest, the fastest first; none that another beats with the same GPUs or fewer.

        Raises
        ------
        Ended
            The deadline was first.
        """
        if self.ways is None:
            return []
        layers, classes = len(self.offer.span), self.gpus.shape[1]
        waiting: list[list[_Labels]] = [[] for _ in range(layers + 1)]
        many = [0] * layers  # labels at each boundary
        one, none = np.ones(1), np.zeros(1, dtype=int)
        end = self.ways.rate.shape[1]
        waiting[layers].append(
            _Labels(
                gpus=np.zeros((1, classes), dtype=int),
                price=0 * one,
                rate=np.inf * one,
                seconds=0 * one,
                late=0 * one,
                reached=none + self.short.shape[1] - 1,
                entered=none + end,
                left=none,
                stages=none,
                row=none,
                rest=none - 1,
            )
        )
        number, starts = 0, []
        for at in range(layers, 0, -1):
            if not waiting[at]:
                continue
            labels = self._kept(_joined(waiting[at]), at)
            waiting[at] = []
            self._first.append(labels.row)
            self._rest.append(labels.rest)
            starts += [at] * len(labels.row)
            for before, more in self._extended(labels, number, at, self.ways):
                waiting[before].append(more)
                many[before] += len(more.row)
                if many[before] > _WAITING_PER_KEPT_LABEL * self.most:
                    waiting[before] = [self._kept(_joined(waiting[before]), before)]
                    many[before] = len(waiting[before][0].row)
            number += len(labels.row)
        if not waiting[0]:
            return []
        return self._found(_joined(waiting[0]), starts)

    def _reached(self, rate: np.ndarray) -> np.ndarray:
        """Number the last of the asked rates that each of these rates reaches; 0 where it reaches none."""
        at = np.searchsorted(self.offer.asked[0], rate * (1 + LAST_BITS), side="right") - 1
        return np.maximum(at, 0)

    def _kept(self, labels: _Labels, at: int) -> _Labels:
        labels = labels.part(_undominated(labels))
        if len(labels.row) > self.most:
            cost = labels.price + self.short[at, labels.reached]
            for kappa, short in self.with_time:
                timed = labels.price + kappa * labels.seconds + short[at, labels.reached]
                cost = np.maximum(cost, timed)
            cost = np.maximum(cost, labels.price - labels.rate * self.gain[at])
            order = np.argpartition(cost, self.most)
            self.covered = min(self.covered, float(cost[order[self.most]]))
            labels = labels.part(order[: self.most])
        return labels

    def _extended(
        self, labels: _Labels, number: int, at: int, ways: Ways
    ) -> Iterator[tuple[int, _Labels]]:
        """Yield all labels with one stage more, by the boundary at which it begins."""
        offer, begins = self.offer, np.arange(at)
        spans = offer.span[begins, at - begins - 1]
        rate, seconds, index = self.rate[:, spans], self.took[:, spans], self.index[:, spans]
        useful = self.short[:at].min(axis=0)
        enter, leave = ways.through[ways.of].T
        # nothing comes after the last layer
        speed = np.pad(ways.rate, ((0, 0), (0, 1)), constant_values=np.inf)
        delay = np.pad(ways.seconds, ((0, 0), (0, 1)))
        step = max(1, _CELLS_AT_ONCE // (len(self.rows) * (at + self.gpus.shape[1])))
        for first in range(0, len(labels.row), step):
            self.deadline.check()
            ends = labels.part(slice(first, first + step))
            room = ends.gpus[:, None, :] + self.gpus <= self.counts
            i, c = np.nonzero(room.all(axis=2))
            link = speed[leave[c], ends.entered[i]]
            slower = link < ends.rate[i]
            reached = ends.reached[i]
            reached[slower] = self._reached(link[slower])
            price = ends.price[i] + self.price[c]
            worth = (price + useful[reached] <= self.slack) & (link > 0)
            i, c, price, reached, link = (v[worth] for v in (i, c, price, reached, link))
            k = np.minimum(reached[:, None], index[c])
            self.steps += k.size
            good = (price[:, None] + self.short[begins, k] <= self.slack) & (rate[c] > 0)
            pair, begin = np.nonzero(good)
            i, c, price, link, k = i[pair], c[pair], price[pair], link[pair], k[pair, begin]
            so_far = ends.seconds[i] + delay[leave[c], ends.entered[i]] + seconds[c, begin]
            slowest = np.minimum(np.minimum(ends.rate[i], link), rate[c, begin])
            late, left, keep = np.zeros_like(so_far), np.zeros_like(i), np.ones(len(i), dtype=bool)
            if offer.timing is not None:
                several = ends.rest[i] >= 0
                left = np.where(several, ends.left[i], leave[c])
                whole = several & (begin == 0)
                back = np.where(whole, ways.back[left, enter[c]], 0.0)
                rest = delay[leave[c], ends.entered[i]] + ends.late[i]
                late = self.late[c, spans[begin]] + np.maximum(self.after[c, spans[begin]], rest)
                late += back
                keep = offer.timing.in_time(
                    so_far + self.soonest[begin],
                    back,
                    late + self.soonest_late[begin],
                    offer.problem.workload.tokens / slowest,
                )
                so_far = so_far + back
            if min(offer.tokens, offer.token_seconds) < np.inf:
                most_tokens = offer.most_tokens(slowest)
                most = np.minimum(slowest, most_tokens / (so_far + self.soonest[begin]))
                k = self._reached(most)
                keep &= price + self.short[begin, k] <= self.slack
                keep &= price - most * self.gain[begin] <= self.slack
                for kappa, short in self.with_time:
                    keep &= price + kappa * so_far + short[begin, k] <= self.slack
            elif offer.timing is None:
                so_far = np.zeros_like(so_far)
            done = _Labels(
                gpus=ends.gpus[i] + self.gpus[c],
                price=price,
                rate=slowest,
                seconds=so_far,
                late=late,
                reached=k,
                entered=enter[c],
                left=left,
                stages=ends.stages[i] + self.by_stages,
                row=self.rows[c],
                rest=number + first + i,
            )
            which = np.flatnonzero(keep)
            which = which[np.argsort(begin[which], kind="stable")]
            done, begin = done.part(which), begin[which]
            cuts = np.flatnonzero(np.diff(begin, prepend=-1, append=at)).tolist()
            for a, b in pairwise(cuts):
                yield int(begin[a]), done.part(slice(a, b))

    def _found(self, labels: _Labels, starts: list[int]) -> list[ListedPipeline]:
        offer, load = self.offer, self.offer.problem.workload
        most = np.full(len(labels.row), offer.numbers.last)
        tokens = load.tokens * offer.problem.parts
        if self.by_stages:
            most = np.minimum(most, labels.stages + offer.problem.costs.filling_number)
        in_flight = np.minimum(most * tokens, offer.most_tokens(labels.rate))
        rate = np.minimum(labels.rate, in_flight / np.maximum(labels.seconds, 1e-300))
        rate = np.where(most < offer.numbers.first, 0.0, np.minimum(rate, offer.most_rate))
        few = labels.gpus.sum(axis=1) <= self.offer.most_gpus
        worth = np.flatnonzero((rate >= labels.price - self.slack) & (rate > 0) & few)
        worth = worth[np.lexsort((labels.gpus[worth].sum(axis=1), -rate[worth]))]
        _, kept = np.unique(labels.gpus[worth], axis=0, return_index=True)
        worth = worth[np.sort(kept)]
        gpus, alone = labels.gpus[worth], np.ones(len(worth), dtype=bool)
        for i in range(1, min(len(worth), _MOST_PIPELINES_COMPARED)):
            alone[i] = not ((gpus[:i] <= gpus[i]).all(axis=1) & alone[:i]).any()
        first, rest = np.concatenate(self._first), np.concatenate(self._rest)
        pipelines = []
        for i in worth[alone].tolist():
            stages, begin = [], 0
            row, label = int(labels.row[i]), int(labels.rest[i])
            while True:
                end = starts[label]
                stages.append((end - begin, tuple(self.table.composition[row].tolist())))
                begin = end
                if rest[label] < 0:
                    break
                row, label = int(first[label]), int(rest[label])
            pipelines.append(
                ListedPipeline(
                    rate=float(rate[i]), gpus=tuple(labels.gpus[i].tolist()), stages=tuple(stages)
                )
            )
        return pipelines


def _joined(parts: list[_Labels]) -> _Labels:
    return _Labels(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


def _undominated(labels: _Labels) -> np.ndarray:
    """Number the labels that none with the same GPUs, ways and number of stages beats in rate and times."""
    size = labels.gpus.max(axis=0, initial=0) + 1.0
    strides = np.append(1.0, np.cumprod(size))
    ways = labels.left + (1 + labels.left.max()) * labels.stages
    ways = labels.entered + (1 + labels.entered.max()) * ways
    if strides[-1] * (1 + ways.max()) < 2**53:  # one number says all
        keys = [labels.gpus @ strides[:-1] + strides[-1] * ways]
    else:
        keys = [ways, *labels.gpus.T]
    order = np.lexsort((labels.late, labels.seconds, -labels.rate, *keys))
    same = np.ones(len(order), dtype=bool)
    for key in keys:
        same[1:] &= key[order][1:] == key[order][:-1]
    same[0] = False
    group = np.cumsum(~same)
    if labels.late.any():
        return order[_unbeaten(group, labels.seconds[order], labels.late[order])]
    _, sooner = np.unique(labels.seconds[order], return_inverse=True)
    value = sooner.reshape(-1) - group * len(order)  # a later group is below all earlier ones
    least = np.minimum.accumulate(value)
    return order[np.append(True, value[1:] < least[:-1])]


def _unbeaten(group: np.ndarray, seconds: np.ndarray, late: np.ndarray) -> np.ndarray:
    """Return, label by label, whether no earlier one of its group has as little of both; groups are runs.

    What is beaten need not be compared with: what beat it is earlier, and has as little.
    """
    unbeaten = np.ones(len(group), dtype=bool)
    for first in range(0, len(group), _LABELS_COMPARED_AT_ONCE):
        block = np.arange(first, min(first + _LABELS_COMPARED_AT_ONCE, len(group)))
        begin = int(np.searchsorted(group, group[first]))
        before = begin + np.flatnonzero(unbeaten[begin : block[-1] + 1])
        beats = group[before] == group[block, None]
        beats &= seconds[before] <= seconds[block, None]
        beats &= late[before] <= late[block, None]
        beats &= before < block[:, None]
        unbeaten[block] = ~beats.any(axis=1)
    return unbeaten
