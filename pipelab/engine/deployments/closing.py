"""Closing the gap: list the pipelines that a better deployment could have, and solve the whole program over them.

`column_generation` says why these are few; `listing` finds them by labels, `mix_tables` by tables over all mixes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from pipelab.engine.deployments.deployment_search import ROUNDING_SECONDS, DeploymentSearch
from pipelab.engine.deployments.listing import MOST_LABELS, Listing
from pipelab.engine.deployments.master_program import (
    DeploymentGoal,
    PipelineColumn,
    Prices,
    solve_whole_program,
)
from pipelab.engine.deployments.mix_tables import MixTables, smallest
from pipelab.engine.deployments.pricing import LeastPrices, Offer
from pipelab.engine.deployments.rounding import as_often_as_chosen
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.fields import given

_MORE_COLUMNS_FACTOR = 1.2  # from which a list that is not finished may have a better deployment
_FIRST_SLACK_SHARE = 0.003  # of the bound: the first list takes the gap for this small
_SLACK_FACTOR = 3.0  # from one complete list to the next
_FIRST_LABELS = 150  # kept at each boundary in a first list
_LABELS_FACTOR = 5  # from one list to the next
# A list is soon complete if its steps grow by less than this share of what its labels do.
_COMPLETING_GROWTH = 0.6
_MOST_LISTING_STEPS = 600_000_000  # some twenty seconds
_RATES_FOR_KAPPAS = 64  # those of most profit say at which prices of a second labels are compared
_FEW_MIXES = 5_000


def are_few_mixes(counts: Iterable[int]) -> bool:
    """Return whether all ways to take some of these GPUs can be looked at."""
    return prod(n + 1 for n in counts) <= _FEW_MIXES


@dataclass
class ClosingSearch(DeploymentSearch):
    """A search that lists the pipelines that a better deployment could have, or that are better alone."""

    _least: tuple[Prices, dict[Offer, LeastPrices]] | None = None
    _covered: dict[Offer, float] = field(default_factory=dict)  # at these prices, tokens/s

    def close_gap(self, most_labels: int = MOST_LABELS) -> None:
        """List the pipelines that a better deployment could have, and solve the whole program over them.

        The first list takes the gap for small: few pipelines are that near to the price of their GPUs, and if the
        best deployment of these leaves no wider gap, it is the best of all. Otherwise lists grow, first in what they
        keep and then in slack, until one is complete for the gap that is open, or too long.

        Parameters
        ----------
        most_labels : int
            Those that the longest list keeps at each boundary.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        if self.finished:
            return
        if len(self.goal.pools) > 1 and not self.finished:
            self._list_one_pool([*self.goal.pools][-1])
        few, bound = are_few_mixes(self.goal.counts.tolist()), given(self.prices).bound
        near, labels, last = _FIRST_SLACK_SHARE * bound, _FIRST_LABELS, 0
        if near <= 0:  # of a load: no list is near
            near = self.slack
        while not self.finished:
            slack, before = min(near, self.slack), self.value
            known = self.steps
            complete, solved = self._solve_over_list(slack, labels=labels)
            if complete and slack >= self.slack:
                self.settled = solved
                return
            if complete:
                near, labels = _SLACK_FACTOR * near, _FIRST_LABELS
            elif labels >= most_labels or self.steps - known == last:  # no label was left out
                break
            elif self.steps > _MOST_LISTING_STEPS:
                return
            elif few or 0 < self.steps - known < _COMPLETING_GROWTH * _LABELS_FACTOR * last:
                labels = most_labels
            elif self.value != before or labels == _FIRST_LABELS:
                labels = min(_LABELS_FACTOR * labels, most_labels)
            else:
                break
            last = self.steps - known
        if not self.finished and not few:
            self._solve_over_list(self.slack, labels=_FIRST_LABELS)

    def bound_by_list(
        self, slack: float, value: float | None, what: str = "lists of pipelines"
    ) -> None:
        """Keep the bound of a list: what is better than its best has a pipeline as far below its price, or further."""
        bound = given(self.prices).bound
        if self.goal.load:
            bound = bound + slack if value is None else min(bound + slack, value)
        else:
            bound = max(bound - slack, value or 0.0)
        self.knows(bound, what)

    def _list_one_pool(self, pool: str) -> None:
        """List the pipelines of one pool, which are few if tokens have limits; prices bound those of the other.

        Each GPU that is left serves the other pool with the rate that its price allows: a program over these and the
        list bounds all deployments. Then pipelines of the other are sought on the GPUs that its best answer leaves.
        Lists grow while that helps. Once this pool's is complete, few pipelines of the other may be in a better
        deployment (`_slack_beside`), and if these are listed, too, the best is proven.
        """
        prices, labels, before, reached = given(self.prices), _FIRST_LABELS, None, -np.inf
        offer = next(offer for offer in self.offers if offer.pool != pool)
        other = offer.pool
        one_gpu = map(tuple, np.eye(len(self.goal.counts), dtype=int).tolist())
        alone = [
            PipelineColumn(rate=rate, gpus=gpus, offer=offer, stages=())
            for rate, gpus in zip(prices.per_gpu(other).tolist(), one_gpu, strict=True)
        ]
        while not self.finished and before != (before := (self.value, self.bound, reached)):
            more = min(_LABELS_FACTOR * labels, MOST_LABELS)
            listed, covered = self.list_columns(prices, self.slack, labels=labels, pools=[pool])
            columns = listed + alone
            run = solve_whole_program(self.goal, columns, self.deadline.within(ROUNDING_SECONDS))
            if run.x is None:
                return
            if run.status == "optimal":
                chosen = as_often_as_chosen(columns, run.x)
                self.bound_by_list(covered, self.goal.value(chosen))
            if covered < self.slack or labels == _FIRST_LABELS:
                used = [column.gpus for column in as_often_as_chosen(listed, run.x)]
                left = self.goal.counts - np.sum(used, axis=0)
                near = min(self.slack, _SLACK_FACTOR * _FIRST_SLACK_SHARE * abs(prices.bound))
                self.list_columns(prices, near, labels=labels, pools=[other], counts=left)
                self.solve_whole_for(ROUNDING_SECONDS)
            slack = self._slack_beside(listed, other) if covered >= self.slack else None
            if slack is not None and not self.finished:
                beside, reached = self.list_columns(prices, slack, labels=more, pools=[other])
                solved = self._solve_whole(listed + beside, self.deadline.within(ROUNDING_SECONDS))
                self.settled = solved and reached >= slack
            labels = more

    def _slack_beside(self, listed: Sequence[PipelineColumn], other: str) -> float | None:
        """Return how far below its price a pipeline of the other pool may be in a better deployment; None if unknown.

        Those listed need GPUs of some least price for the other pool, to serve in theirs what the best serves. What is
        left exceeds what the other has to serve by this.
        """
        goal, per_gpu = self.goal, given(self.prices).per_gpu(other)
        if goal.load or not self.value:
            return None
        tokens = {pool: goal.pools[pool] for pool in goal.pools if pool != other}
        least = DeploymentGoal(counts=goal.counts, load=self.value, price=per_gpu, pools=tokens)
        run = solve_whole_program(least, listed, self.deadline.within(ROUNDING_SECONDS))
        if run.x is None or run.status != "optimal":
            return None
        left = float(per_gpu @ goal.counts) - least.value(as_often_as_chosen(listed, run.x))
        short = left * (1 + ONE_ANSWER) - goal.pools[other] * self.value
        return short / given(self.prices).as_rate(other, 1.0)

    def _solve_over_list(self, slack: float, *, labels: int) -> tuple[bool, bool]:
        """Solve the whole program over a list; return whether the list is complete, and the program solved."""
        listed, covered = self.list_columns(given(self.prices), slack, labels=labels)
        complete = covered >= min(slack, self.slack)
        seconds, solved = np.inf if complete else ROUNDING_SECONDS, True
        if listed:
            solved = self._solve_whole(listed, self.deadline.within(seconds))
            self.deadline.check()
        if solved:
            self.bound_by_list(covered, self.value)
        return complete, solved

    def list_columns(
        self,
        prices: Prices,
        slack: float,
        *,
        labels: int,
        wide: bool = False,
        pools: Iterable[str] = (),
        counts: np.ndarray | None = None,
    ) -> tuple[list[PipelineColumn], float]:
        """List pipelines within a slack of the price of their GPUs as columns; return the slack within which all are.

        Parameters
        ----------
        slack : float
            In units of the bound.
        labels : int
            Those kept at each boundary.
        wide : bool
            Where time limits pipelines, look at all mixes at once, whatever the slack.
        pools : iterable of str, optional
            List those of these pools alone.
        counts : int array, optional
            List those with no more GPUs of each class, and halve no numbers in flight.
        """
        pools = {*pools} or {*self.goal.pools}
        offers = [offer for offer in self.offers if offer.pool in pools]
        covered, waiting, known = slack, self._most_profits(offers, prices, slack), 0
        while waiting:
            if self.steps > _MOST_LISTING_STEPS:
                covered = min(covered, -max(waiting.values()))
                break
            if self.prices and len(self.columns) > _MORE_COLUMNS_FACTOR * known:
                self.solve_whole_for(ROUNDING_SECONDS)
                slack, known = min(slack, self.slack), len(self.columns)
            offer = max(waiting, key=waiting.__getitem__)
            del waiting[offer]
            per_gpu, short = prices.per_gpu(offer.pool), prices.as_rate(offer.pool, slack)
            if self._covered.get(offer, -np.inf) >= short:
                continue
            by_stages = offer.problem.costs.filling == "by_stages"  # which a table does not count
            if wide and offer.tokens < np.inf and not by_stages:
                reached, loose = self._list_by_tables(offer, per_gpu, short)
            else:
                least = given(self._least)[1][offer]
                apart = np.argsort(least.price - offer.asked[1])[:_RATES_FOR_KAPPAS:16]
                per_second = np.unique(least.per_second[apart]).tolist()
                listing = Listing(offer, per_gpu, short, self.deadline, labels, per_second, counts)
                reached, loose = self._list_by_labels(listing)
            if loose < np.inf and not offer.numbers.single and counts is None:
                waiting |= self._most_profits(self.halve(offer), prices, slack)
                continue
            reached = min(reached, loose)
            if counts is None:
                self._covered[offer] = reached
            if reached < short:
                covered = min(covered, reached / prices.as_rate(offer.pool, 1.0))
        near = [c for c in self.pipelines if c.offer.pool in pools and prices.profit(c) >= -slack]
        return [c for c in near if c.rate >= self._best_rate[c.offer.pool, c.gpus]], min(
            covered, slack
        )

    def _most_profits(
        self, offers: Sequence[Offer], prices: Prices, slack: float
    ) -> dict[Offer, float]:
        """Return the offers of which a pipeline may be within the slack, and the most it may yield above its price."""
        most = {}
        if self._least is None or self._least[0] is not prices:
            self._least, self._covered = (prices, {}), {}
        known = self._least[1]
        for offer in offers:
            if offer not in known:
                known[offer] = offer.least(prices.per_gpu(offer.pool), self.deadline)
            profit = float((offer.asked[1] - known[offer].price).max())
            if profit >= -prices.as_rate(offer.pool, slack):
                most[offer] = profit / prices.as_rate(offer.pool, 1.0)
        return most

    def _list_by_labels(self, listing: Listing) -> tuple[float, float]:
        """Add the pipelines of a listing as columns.

        Returns
        -------
        covered, loose : float
            All are there that fall short of the price of their GPUs by less, in tokens/s; and by how much those do
            at least that attain less than they count with.
        """
        loose, pipelines = np.inf, listing.pipelines()
        self.steps += listing.steps
        for rate, gpus, stages in pipelines:
            listing.deadline.check()
            if self._best_rate.get((listing.offer.pool, gpus), 0.0) < rate * (1 - ONE_ANSWER):
                attained = listing.offer.attained(stages)
                column = PipelineColumn(attained, gpus, offer=listing.offer, stages=stages)
                self.add_column(column)
                if attained < rate * (1 - ONE_ANSWER):
                    loose = min(loose, float(listing.prices @ gpus) - rate)
        return listing.covered, loose

    def _list_by_tables(
        self, offer: Offer, prices: np.ndarray, slack: float
    ) -> tuple[float, float]:
        """Add the best pipeline of every mix that may be within the slack of its GPUs' price, as `_list_by_labels`.

        An offer with several numbers in flight adds none, and is loose where a mix may yield more than is known.
        """
        tables = MixTables(offer, self.deadline)
        if not tables.fit():
            return -np.inf, np.inf
        known = np.zeros(tables.shape)
        for (_, gpus), rate in self._best_rate.items():
            known[gpus] = rate
        for axis in range(known.ndim):
            np.maximum.accumulate(known, axis=axis, out=known)
        enough = np.tensordot(prices, np.indices(known.shape), 1) - slack
        if not offer.numbers.single:
            return slack, -np.inf if tables.exceed(np.maximum(known, enough)) else np.inf
        best, loose = tables.best(known, enough), np.inf
        for mix in map(tuple, smallest(best.rate).tolist()):
            rate, at = float(best.rate[mix]), int(best.at[mix])
            if at >= 0:
                column = PipelineColumn(rate=rate, gpus=mix, offer=offer, stages=(), at=at)
                if offer.merged:
                    stages = tables.stages(at, mix)
                    column = PipelineColumn(
                        rate=offer.attained(stages), gpus=mix, offer=offer, stages=stages
                    )
                self.add_column(column)
                if column.rate < rate * (1 - ONE_ANSWER):
                    loose = min(loose, float(prices @ mix) - rate)
        return slack, loose

    def generate_alone(self) -> None:
        """Find the best pipeline alone by branch and bound over offers.

        The offer that may yield most is next. Without prices, those of its pipelines are listed that are faster than
        the best so far. Where one yields less than it counts with, the offer's numbers in flight are halved.

        Raises
        ------
        Ended
            The deadline was first; the bound is what the offers may yield that were left.
        """
        free = np.zeros(len(self.goal.counts))
        prices = Prices(cost=free, ratio=dict(self.goal.pools), bound=np.inf, unit=1.0)

        def most_profits(offers: Sequence[Offer]) -> dict[Offer, float]:
            return self._most_profits(offers, prices, -(self.value or 0.0))

        waiting, unlisted = {} if self.finished else most_profits(self.offers), 0.0
        while waiting:
            offer = max(waiting, key=waiting.__getitem__)
            self.knows(max(waiting[offer], unlisted, self.value or 0.0), "lists of pipelines")
            if self.finished or waiting[offer] <= 0:
                break
            floor = prices.as_rate(offer.pool, -(self.value or 0.0))
            covered, loose = self._list_by_labels(Listing(offer, free, floor, self.deadline))
            for column in self.pipelines:
                self.keep_if_better([column])
            most = waiting.pop(offer)
            if loose < np.inf and not offer.numbers.single:
                waiting |= most_profits(self.halve(offer))
            elif min(covered, loose) < floor:
                unlisted = max(unlisted, most)
            self.rounds += 1
            self.report_progress()
        if not self.finished:
            self.knows(max(unlisted, self.value or 0.0), "lists of pipelines")
            self.settled = not unlisted
