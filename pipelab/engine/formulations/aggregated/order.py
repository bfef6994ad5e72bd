"""Which stage may follow which at a given rate: stages meet at "the set of classes that may follow".

At a rate t a link either reaches t or it does not. A stage may follow another if every class
of the second may follow every class of the first. So all that the next stage needs to know of
a stage is the set of classes that may follow it: a *state*. A stage leads from any state that
has all of its classes to a state of its own. Stages that can be entered from the same states
and lead to the same one are of one *link kind*, and few kinds stand for very many pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline

__all__ = ["MOST_SUPPORTS", "Order", "free_order", "link_order", "number_of_sets"]

# sets of classes that are listed; 24 classes in stages of up to 4 have 12,950
MOST_SUPPORTS = 20_000


@dataclass(frozen=True, eq=False)
class Order:
    """States and link kinds at one rate. State 0 is the start of the pipeline: any class may follow.

    Attributes
    ----------
    follows : bool array, shape (I, A)
        The classes that may follow each state.
    entry : bool array, shape (J, I)
        From which states a stage of link kind j may be entered.
    leads_to : int array, shape (J,)
        To which state it leads.
    support, kind_of : bool array (Q, A), int array (Q,)
        Sets of classes that a stage may use, and the link kind of each.
    narrowed : bool
        Sets of more classes were left out, as there would have been too many.
    deadline : Deadline
        For listing arcs, which may take minutes.
    """

    follows: np.ndarray
    entry: np.ndarray
    leads_to: np.ndarray
    support: np.ndarray
    kind_of: np.ndarray
    narrowed: bool = False
    deadline: Deadline = NEVER

    @cached_property
    def arcs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps of a walk: state left, state reached, link kind of the stage passed; shape (Y,) each.

        A step either passes a stage or, with link kind -1, goes down from a state to the next
        smaller ones. Going down gives up classes that may follow, so a stage need be entered only
        from the smallest states that have all its classes: far fewer arcs than pairs that fit.
        """
        f = self.follows.astype(np.float32)
        missing = f @ (1 - f).T  # (I, I): how many classes of the first the second lacks
        below = (missing == 0) & (missing.T > 0)  # [i, j]: state i is a proper part of state j
        enter = self.entry & ~_through(self.entry, below, self.deadline)
        down = below & ~_through(below, below, self.deadline)
        kind, state = np.nonzero(enter)
        smaller, larger = np.nonzero(down)
        return (
            np.concatenate([state, larger]),
            np.concatenate([self.leads_to[kind], smaller]),
            np.concatenate([kind, np.full(len(smaller), -1)]),
        )

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self.follows)

    @property
    def link_kinds(self) -> int:
        """Number of link kinds."""
        return len(self.leads_to)

    @property
    def free(self) -> bool:
        """Whether any stage may follow any other."""
        return len(self.follows) == 1

    def only(self, kinds: np.ndarray) -> "Order":
        """The same for stages of these link kinds alone, with the states that they can lead to."""
        states = np.concatenate([[0], np.setdiff1d(self.leads_to[kinds], [0])])
        number = np.zeros(len(self.follows), dtype=int)
        number[states] = np.arange(len(states))
        entry = self.entry[np.ix_(kinds, states)]
        return Order(
            self.follows[states], entry, number[self.leads_to[kinds]], self.support[:0], self.kind_of[:0],
            deadline=self.deadline,
        )  # fmt: skip

    def closed_supports(
        self, eligible: np.ndarray, parts: list[tuple[int, np.ndarray]]
    ) -> list[tuple[np.ndarray, int]]:
        """Largest sets of classes per link kind, among the eligible ones.

        Parameters
        ----------
        eligible : bool array, shape (A,)
        parts : list of (int, bool array of shape (A,))
            The stage draws so many GPUs from each of these disjoint sets of classes, at least one
            class and at most so many of them.

        Returns
        -------
        list of (bool array of shape (A,), link kind)
            Two sets of one link kind are as good as their union: wherever the one may stand, so
            may the other, and any mixture of both.
        """
        if self.free:
            return [(eligible, 0)]
        inside = ~(self.support & ~eligible).any(axis=1)
        for number, classes in parts:
            used = (self.support & classes).sum(axis=1)
            inside &= (used >= 1) & (used <= number)
        unions: dict[int, np.ndarray] = {}
        for q in np.flatnonzero(inside):
            j = int(self.kind_of[q])
            unions[j] = unions[j] | self.support[q] if j in unions else self.support[q]
        return [(union, j) for j, union in sorted(unions.items())]


def _through(start: np.ndarray, step: np.ndarray, deadline: Deadline) -> np.ndarray:
    """Which pairs are joined by way of a third; in parts, since 10,000 states would take minutes."""
    out, after = np.zeros((len(start), step.shape[1]), dtype=bool), step.astype(np.float32)
    for rows in _parts(len(start), step.size):
        deadline.check()
        out[rows] = start[rows].astype(np.float32) @ after > 0
    return out


def _parts(rows: int, work: int) -> Iterator[slice]:
    """Rows in parts that each take a tenth of a second at most, if one takes so many multiplications."""
    step = max(1, 1_000_000_000 // max(1, work))
    return (slice(i, i + step) for i in range(0, rows, step))


def number_of_sets(classes: int, largest: int) -> int:
    """How many sets of 1 … `largest` classes there are."""
    return sum(comb(classes, k) for k in range(1, min(largest, classes) + 1))


def free_order(classes: int) -> Order:
    """Every link reaches the rate: one state, one link kind."""
    everything = np.ones((1, classes), dtype=bool)
    return Order(
        everything,
        np.ones((1, 1), dtype=bool),
        np.zeros(1, dtype=int),
        everything,
        np.zeros(1, dtype=int),
    )


def link_order(
    reaches: np.ndarray, eligible: np.ndarray, largest: int, deadline: Deadline = NEVER
) -> Order:
    """States and link kinds of every set of up to `largest` eligible classes.

    Parameters
    ----------
    reaches : bool array, shape (A, A)
        Whether the link from class a to class b reaches the rate.
    eligible : bool array, shape (A,)
        Classes that some stage of that rate can use.
    """
    there = np.flatnonzero(eligible)
    if reaches[np.ix_(there, there)].all():
        return free_order(len(eligible))
    wanted = largest = min(largest, len(there))
    while largest > 1 and number_of_sets(len(there), largest) > MOST_SUPPORTS:
        largest -= 1
    sets = []
    for k in range(1, largest + 1):
        deadline.check()
        sets.append(np.array(list(combinations(there, k))))
    support = np.zeros((sum(map(len, sets)), len(eligible)), dtype=bool)
    support[
        np.repeat(np.arange(len(support)), [s.shape[1] for s in sets for _ in s]),
        np.concatenate([s.ravel() for s in sets]),
    ] = True
    followed = np.concatenate([reaches[s].all(axis=1) for s in sets]) & eligible
    deadline.check()
    states, leads_to = np.unique(np.vstack([eligible[None], followed]), axis=0, return_inverse=True)
    start, leads_to = leads_to.reshape(-1)[0], leads_to.reshape(-1)[1:]
    # The start comes first; a stage that anybody may follow leads back to a state like it.
    rank = np.concatenate([[start], np.delete(np.arange(len(states)), start)])
    states, leads_to = states[rank], np.argsort(rank)[leads_to]
    # A support can be entered where none of its classes is missing.
    entry, lacks = np.zeros((len(support), len(states)), dtype=bool), (~states).T.astype(np.float32)
    for rows in _parts(len(support), 10 * lacks.size):
        deadline.check()
        entry[rows] = (support[rows].astype(np.float32) @ lacks) == 0
    key = np.hstack(
        [
            np.packbits(entry, axis=1),
            leads_to[:, None].astype(np.int64).view(np.uint8).reshape(len(leads_to), -1),
        ]
    )
    # As np.unique(axis=0) would have it, a hundred times as fast where rows are long.
    keys = [row.tobytes() for row in key]
    deadline.check()
    number = {row: j for j, row in enumerate(sorted(set(keys)))}
    kind_of = np.array([number[row] for row in keys])
    first = np.empty(len(number), dtype=int)
    first[kind_of[::-1]] = np.arange(len(keys))[::-1]
    return Order(
        states, entry[first], leads_to[first], support, kind_of, largest < wanted, deadline
    )
