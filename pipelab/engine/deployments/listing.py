"""Closing the gap: every pipeline that a better deployment could have, then the best division among these.

A pipeline of rate r on n GPUs is of interest if r ≥ p · n - slack (`generation`). A rate at which even
the cheapest pipeline is dearer than that by more than the slack is left out without a look.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.deployments.generation import Generation
from pipelab.engine.deployments.master import Column, Demand, repeated, whole
from pipelab.engine.deployments.mixes import Mixes
from pipelab.engine.deployments.offers import Offer
from pipelab.engine.deployments.pass_times import MOST_STEPS_OF_TABLE, BestRates, LeastPasses
from pipelab.engine.deployments.pricing import Pricing
from pipelab.engine.deployments.reachable import ReachableMixes, frontier
from pipelab.engine.deployments.sums import MOST_STEPS, best_sums, chosen, number_of_steps
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.fields import given

MOST_MIXES = 4_000_000  # half a megabyte for each set of mixes
_FEW_MIXES = 20_000  # listed in a second
_SLACK = 1e-9  # of the price of all GPUs: the arithmetic of prices
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
    pricings: Sequence[Pricing] = (),
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
            least, highest = _of_interest(offer, pricings[i], generation)
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
            if passes.steps() > MOST_STEPS_OF_TABLE:
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
    price = pricing.least(generation.prices.per_gpu, generation.deadline)
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


def close_gap(generation: Generation, offers: list[Offer], pricings: Sequence[Pricing]) -> bool:
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
        else list_all(offers, deadline, pricings, generation)
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
