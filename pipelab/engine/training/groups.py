"""Classes of GPUs merged into groups, where GPUs differ in so many ways that tables would be too large.

Every stage then counts with the best that its like has, so that what bounds it still does.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from pipelab.engine.training.bounds import BIG
from pipelab.engine.training.stages import Stages


@dataclass(frozen=True, eq=False)
class Groups:
    """Classes of GPUs, some of them merged.

    Attributes
    ----------
    count : int array, shape (G,)
        GPUs of each group.
    composition : int array, shape (D, G)
        The different compositions by groups.
    of : int array, shape (C,)
        Of each composition by classes, the one by groups.
    receiver : int array, shape (D,)
        The kind of receiver, of H: messages to one kind take the same, whoever sends.
    between : float array, shape (D, H)
        Seconds of a message from a composition to a kind of receiver, the least that there may be.
    onward : float array, shape (C, H)
        The same, from a composition by classes.
    """

    count: np.ndarray
    composition: np.ndarray
    of: np.ndarray
    receiver: np.ndarray
    between: np.ndarray
    onward: np.ndarray

    @property
    def states(self) -> int:
        """Ways to use some of the GPUs."""
        return prod(int(n) + 1 for n in self.count)

    @property
    def work(self) -> int:
        """Of one level and first layer: compositions that may be put before a state."""
        return self.states * len(self.composition)

    def least(self, values: np.ndarray) -> np.ndarray:
        """The least of each group's members, along the first axis."""
        found = np.full((len(self.composition), *values.shape[1:]), np.inf)
        np.minimum.at(found, self.of, values)
        return found


def groups_of(stages: Stages, group: np.ndarray) -> Groups:
    """Classes merged as `group` says, one number per class."""
    count = np.bincount(group, weights=stages.classes.count).astype(int)
    member = np.eye(len(count), dtype=int)[group]
    by_group = stages.composition @ member
    composition, of = np.unique(by_group, axis=0, return_inverse=True)
    of = of.ravel()
    # Two stages cannot share a GPU: where there are too few for both, there is no message.
    hop = stages.hop.copy()
    for mine, most in zip(stages.composition.T, stages.classes.count, strict=True):
        hop[mine[:, None] + mine[None, :] > most] = np.inf
    to = np.stack([stages.hop[:, of == d].min(axis=1) for d in range(len(composition))])
    receiver = np.unique(to, axis=0, return_inverse=True)[1].ravel()
    first = np.full((len(hop), receiver.max() + 1), np.inf)
    np.minimum.at(first.T, receiver[of], hop.T)
    between = np.full((len(composition), first.shape[1]), np.inf)
    np.minimum.at(between, of, first)
    return Groups(
        count, composition, of, receiver, np.minimum(between, BIG), np.minimum(first, BIG)
    )


def merged(stages: Stages, most: int) -> Groups:
    """As few classes merged as keep to so much work: identical GPUs first, then the nearest speeds."""
    group = np.arange(len(stages.classes))
    found = groups_of(stages, group)
    if found.work <= most:
        return found
    group = stages.classes.kind.astype(int)
    _, group = np.unique(group, return_inverse=True)
    speed = _speeds(stages)
    while (found := groups_of(stages, group)).work > most and group.max():
        means = [speed[group == g].mean() for g in range(group.max() + 1)]
        order = np.argsort(means)
        nearest = int(np.argmin(np.diff(np.log(np.array(means)[order]))))
        group = np.where(group == order[nearest + 1], order[nearest], group)
        _, group = np.unique(group, return_inverse=True)
    return found


def _speeds(stages: Stages) -> np.ndarray:
    """Of one GPU of each class: one over the least time of a layer."""
    mode = stages.costs[stages.modes[0]]
    each = np.where(stages.serves, mode[:3].sum(axis=0), np.inf) / stages.runs.layers
    alone = stages.composition.sum(axis=1) == 1
    speed = np.ones(len(stages.classes))
    for c in np.flatnonzero(alone):
        least = each[c].min()
        speed[int(np.argmax(stages.composition[c]))] = 1 / least if least < np.inf else 1e-9
    return speed
