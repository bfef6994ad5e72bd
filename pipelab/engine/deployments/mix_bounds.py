"""What pipelines on every mix of GPUs yield at most, whatever the order of their stages: a bound that counts GPUs.

Let the stages of a pipeline reach the rate t. A GPU of class a then has at most h_a(t) layers, its share of those of a
stage, each in at least s_a(t) seconds with the hop that follows. So a traversal of M layers takes no less than where
the GPUs with the least s_a are full, and the last of them has the rest (a fractional knapsack). Groups of
classes which neither a stage nor a shortest hop joins are joined by hops that take longer, one fewer than there are
groups, and the pipeline is no faster than the fastest link between groups. With n·w tokens in flight no pipeline on a
mix yields more than

    max over t of min(t, n·w / least seconds at t)

and as the seconds rise with t, bisection finds it for all mixes at once.

The program over mixes with these rates bounds all deployments (`MixSearch`). Of the mixes that it chooses numbers in
flight are halved; of a single number the best pipeline is found (`PartsSearch`), and what it attains is from then on
the most for its mix and all parts of it. If the best deployment attains what the program does, it is proven best.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse.csgraph import connected_components

from pipelab.engine.deployments.column_generation import Generation
from pipelab.engine.deployments.deployment_search import ROUNDING_SECONDS
from pipelab.engine.deployments.master_program import PipelineColumn, solve_whole_program
from pipelab.engine.deployments.mix_tables import smallest
from pipelab.engine.deployments.parts import PartsSearch
from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.deployments.rounding import as_often_as_chosen
from pipelab.engine.tolerances import LAST_BITS
from pipelab.fields import given
from pipelab.problem import Problem

_NEVER_SECONDS = 1e30  # of a class of which no stage reaches a rate
_ROUNDS_STUCK = 2  # of the relaxation, one after the other, without a better bound
_ROUND_SHARE = 0.005  # of the bound, which is better
_MOST_ROUNDS = 60


@dataclass
class MixSearch:
    """A search of the best deployment by bounds on all mixes of its GPUs; `parts` finds pipelines on some."""

    generation: Generation
    parts: PartsSearch
    _rates: dict[Offer, np.ndarray] = field(default_factory=dict)
    _attained: dict[Problem, np.ndarray] = field(default_factory=dict)  # on a mix at most

    def run(self) -> bool:
        """Bound all deployments, and look at the mixes that decide, until the best is proven or that does not help.

        Returns
        -------
        bool
            Whether it helped: no other bound is as good.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        generation, stuck = self.generation, 0
        offers, prices = generation.offers, generation.prices
        for _ in range(_MOST_ROUNDS):
            mixes = [mix for pool in generation.goal.pools for mix in self._mixes(pool)]
            before = given(generation.bound)
            deciding, open_ = generation.bound_by_mixes(mixes), list[PipelineColumn]()
            helps = generation.prices is not prices
            if abs(given(generation.bound) - before) > _ROUND_SHARE * abs(before):
                stuck = 0
            elif helps:
                open_ = [mix for mix in self._chosen(mixes) if mix.rate > self._known(mix)]
                deciding += [mix.offer for mix in open_]
                if not open_:
                    break
            elif (stuck := stuck + 1) == _ROUNDS_STUCK:
                break
            halved = [offer for offer in dict.fromkeys(deciding) if not offer.numbers.single]
            looked = not open_ or any(not mix.offer.numbers.single for mix in open_)
            if generation.finished or not (looked or all(map(self._look, open_))):
                break
            for offer in halved:
                generation.halve(offer)
            generation.round_relaxation()
            generation.report_progress()
        if not helps:
            generation.offers = offers
        return helps

    def _known(self, mix: PipelineColumn) -> float:
        """Return what is attained on a mix, and a little more."""
        known = [
            c.rate
            for c in self.generation.pipelines
            if c.offer.pool == mix.offer.pool and (np.array(c.gpus) <= mix.gpus).all()
        ]
        return max(known, default=0.0) * (1 + LAST_BITS)

    def _chosen(self, mixes: list[PipelineColumn]) -> list[PipelineColumn]:
        """Return the mixes of the whole program; none if none were found in time."""
        generation = self.generation
        near = [m for m in mixes if given(generation.prices).profit(m) >= -generation.slack]
        if not near:  # no deployment is better than the best
            generation.bound_by_list(generation.slack, None, "mixes of GPUs")
            return []
        until = generation.deadline.within(ROUNDING_SECONDS)
        run = solve_whole_program(generation.goal, near, until)
        if run.x is None:
            return []
        chosen = as_often_as_chosen(near, run.x)
        if run.status == "optimal":
            most = generation.goal.value(chosen)
            generation.bound_by_list(generation.slack, most, "mixes of GPUs")
        return list(dict.fromkeys(chosen))

    def _look(self, mix: PipelineColumn) -> bool:
        """Find the best pipeline on a mix; return whether that is now known."""
        best = self.parts.best_on(np.array(mix.gpus), mix.offer)
        if best is None or best.status not in ("optimal", "infeasible") or mix.offer.merged:
            return False
        shape = tuple((self.generation.goal.counts + 1).tolist())
        most = self._attained.setdefault(mix.offer.problem, np.full(shape, math.inf))
        part = tuple(slice(n + 1) for n in mix.gpus)
        most[part] = np.minimum(most[part], given(best.bound))
        return True

    def _mixes(self, pool: str) -> Iterator[PipelineColumn]:
        """Make a column of every mix, with what no pipeline on it exceeds."""
        generation, counts = self.generation, self.generation.goal.counts
        offers = [offer for offer in generation.offers if offer.pool == pool]
        for offer in offers:
            generation.deadline.check()
            if offer not in self._rates:
                self._rates[offer] = most_rates(offer)
        known = [
            np.minimum(self._rates[o], self._attained.get(o.problem, math.inf)) for o in offers
        ]
        price = np.tensordot(
            given(generation.prices).per_gpu(pool), np.indices((counts + 1).tolist()), 1
        )
        most, deciding = np.minimum(np.max(known, axis=0), price), np.argmax(known, axis=0)
        for mix in map(tuple, smallest(most).tolist()):
            yield PipelineColumn(
                rate=float(most[mix]), gpus=mix, offer=offers[deciding[mix]], stages=()
            )


def most_rates(offer: Offer) -> np.ndarray:
    """Return what no pipeline on a mix exceeds, in tokens/s; one axis for each class, 0, 1, … of its GPUs."""
    table, rates, layers = offer.table, offer.stage_rates, len(offer.span)
    shape = tuple((table.classes.count + 1).tolist())
    mixes = np.indices(shape).reshape(len(shape), -1).T
    held, seconds = _by_rate(offer)
    quickest = np.argsort(seconds, axis=1)
    joining, most = _joined(offer, mixes > 0)

    def attained(at: np.ndarray) -> np.ndarray:
        order = quickest[at]
        room = np.take_along_axis(held[at], order, 1) * np.take_along_axis(mixes, order, 1)
        so_far = np.cumsum(room, axis=1)
        used = np.clip(layers - (so_far - room), 0, room)
        took = (used * np.take_along_axis(seconds[at], order, 1)).sum(axis=1) + joining
        enough = (so_far[:, -1] >= layers * (1 - LAST_BITS)) & (took <= offer.longest)
        return np.where(enough, offer.tokens / np.maximum(took, 1 / _NEVER_SECONDS), 0.0)

    reached, beyond = np.full(len(mixes), -1), np.full(len(mixes), len(rates))
    while (beyond - reached > 1).any():
        middle = (reached + beyond) // 2
        reaches = attained(np.maximum(middle, 0)) >= rates[middle]
        reached = np.where(reaches, middle, reached)
        beyond = np.where(reaches, beyond, np.maximum(middle, reached + 1))
    known = np.append(rates, 0.0)[reached]
    above = np.where(beyond < len(rates), attained(np.minimum(beyond, len(rates) - 1)), 0.0)
    return np.minimum(np.maximum(known, above), np.minimum(most, offer.most_rate)).reshape(shape)


def _by_rate(offer: Offer) -> tuple[np.ndarray, np.ndarray]:
    """Return the most layers of a GPU of each class at each rate, and the least seconds for one; shape (T, A) each."""
    table, rates = offer.table, offer.stage_rates
    layers, size = table.spans.layers, table.composition.sum(axis=1)[:, None]
    took = (table.seconds + table.hop.min()) / layers
    held, seconds = [], []
    for used in table.composition.T > 0:
        rate = table.rate[used].ravel()
        fastest = np.argsort(-rate)
        at = np.searchsorted(-rate[fastest], -rates * (1 - LAST_BITS), side="right")
        most = np.maximum.accumulate((layers / size[used]).ravel()[fastest])
        least = np.minimum.accumulate(took[used].ravel()[fastest])
        held.append(np.append(0.0, most)[at])
        seconds.append(np.append(_NEVER_SECONDS, least)[at])
    return np.stack(held, axis=1), np.minimum(np.stack(seconds, axis=1), _NEVER_SECONDS)


def _joined(offer: Offer, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds that hops between groups add at least, less the last hop, and the rate of links at most."""
    table, has = offer.table, offer.table.composition > 0
    shortest = float(table.hop.min())
    near = (has.T.astype(int) @ has > 0) | (table.hop <= shortest * (1 + LAST_BITS)) | table.pure
    number, group = connected_components(near, directed=False)
    if number == 1:
        return np.full(len(used), -shortest), np.full(len(used), math.inf)
    apart = group[:, None] != group
    several = np.stack([used[:, group == g].any(axis=1) for g in range(number)]).sum(axis=0) - 1
    added = np.maximum(several, 0) * float(table.hop[apart].min() - shortest) - shortest
    return added, np.where(several > 0, table.link[apart].max(), math.inf)
