"""What pipelines on every mix of GPUs yield at most, whatever the order of their stages: a bound that counts GPUs.

Let the stages of a pipeline reach the rate t. A GPU of class a then has at most h_a(t) layers, its share of those of a
stage, each in at least s_a(t) seconds with the hop that follows. So a traversal of M layers takes no less than where
the GPUs with the least s_a are full, and the last of them has the rest (a fractional knapsack). Groups of
classes which neither a stage nor a shortest hop joins are joined by hops that take longer, one fewer than there are
groups, and the pipeline is no faster than the fastest link between groups. With n·w tokens in flight no pipeline on a
mix yields more than

    max over t of min(t, n·w / least seconds at t)

and as the seconds rise with t, bisection finds it for all mixes at once.
"""

import math

import numpy as np
from scipy.sparse.csgraph import connected_components

from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.tolerances import LAST_BITS

_NEVER_SECONDS = 1e30  # of a class of which no stage reaches a rate


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
