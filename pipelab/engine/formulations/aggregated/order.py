"""Which stage may follow which at a given rate: stages meet at "the set of classes that may follow".

At a rate t a link either reaches t or it does not. A stage may follow another if every class
of the second may follow every class of the first. So all that the next stage needs to know of
a stage is the set of classes that may follow it: a *state*. A stage can be entered from any state
that contains all of its classes, and leads to a state of its own. Stages that can be entered from
the same states and lead to the same one are of one *link kind*, and few kinds represent very many
pairs of stages.

Three classes A, B and C; the links A→A, A→B, B→B and B→C reach the rate, no other does:

    stage of     may be followed by     can be entered from
    A            {A, B}                 start {A, B, C}, {A, B}
    B            {B, C}                 start, {A, B}, {B, C}
    C            nothing                start, {B, C}
    A and B      {B}                    start, {A, B}
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline

# sets of classes that are listed; 24 classes in stages of up to 4 have 12,950
MOST_SUPPORTS = 20_000
_PRODUCTS_PER_STEP = 1_000_000_000  # of a matrix product: a tenth of a second


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

        A step either passes a stage or, with link kind -1, goes down from a state to one of its
        largest proper subsets. Going down gives up classes that may follow. So a stage needs an arc
        only from the smallest states that contain all its classes; from every larger state it is
        reached by going down first. That makes far fewer arcs than one per pair that fits.
        """
        inside = _is_subset(self.follows, self.follows, self.deadline)
        below = inside & ~inside.T  # [i, j]: state i is a proper subset of state j
        enter = self.entry & ~_in_two_steps(self.entry, below, self.deadline)
        down = below & ~_in_two_steps(below, below, self.deadline)
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
            Two sets of one link kind are as good as their union: wherever the one may come, so
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


def _is_subset(sets: np.ndarray, others: np.ndarray, deadline: Deadline) -> np.ndarray:
    """Whether each of `sets`, bool (Q, A), is a subset of each of `others`, (I, A); bool, shape (Q, I)."""
    return ~_share_a_member(sets, ~others, deadline)


def _in_two_steps(first: np.ndarray, second: np.ndarray, deadline: Deadline) -> np.ndarray:
    """Whether some j has first[i, j] and second[j, k]; bool, shape (I, K)."""
    return _share_a_member(first, second.T, deadline)


def _share_a_member(sets: np.ndarray, others: np.ndarray, deadline: Deadline) -> np.ndarray:
    """Whether each of `sets`, bool (Q, A), has a member in common with each of `others`, (I, A).

    A product of 0-1 matrices counts the common members of every pair, by the processor's fastest
    instructions if the matrices are floats. Row by row, so that the deadline is kept: with 10,000
    states the whole product takes minutes.
    """
    common = np.zeros((len(sets), len(others)), dtype=bool)
    columns = others.T.astype(np.float32)
    # longer blocks than 1,000 rows do not fit in the processor's cache
    rows = min(1_000, max(1, _PRODUCTS_PER_STEP // max(1, columns.size)))
    for i in range(0, len(sets), rows):
        deadline.check()
        common[i : i + rows] = sets[i : i + rows].astype(np.float32) @ columns > 0
    return common


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
    support = _sets_of_classes(there, largest, len(eligible), deadline)
    # A class may follow a set unless the link from some member of the set is too slow.
    followed = eligible & ~_share_a_member(support, ~reaches.T, deadline)
    states, leads_to = _distinct_states(eligible, followed)
    deadline.check()
    entry = _is_subset(support, states, deadline)
    example, kind_of = _distinct_kinds(entry, leads_to, deadline)
    narrowed = largest < wanted
    return Order(states, entry[example], leads_to[example], support, kind_of, narrowed, deadline)


def _sets_of_classes(
    classes: np.ndarray, largest: int, total: int, deadline: Deadline
) -> np.ndarray:
    """Every set of 1 … `largest` of these classes, as rows of a bool array of shape (Q, total)."""
    parts = []
    for size in range(1, largest + 1):
        deadline.check()
        members = np.array(list(combinations(classes, size)))
        part = np.zeros((len(members), total), dtype=bool)
        np.put_along_axis(part, members, True, axis=1)
        parts.append(part)
    return np.concatenate(parts)


def _distinct_states(start: np.ndarray, followed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of `start` (A,) and `followed` (Q, A), `start` first; and which one each row is."""
    rows, number = np.unique(np.vstack([start, followed]), axis=0, return_inverse=True)
    number = number.reshape(-1)  # a column in some versions of numpy
    first = number[0]
    order = np.concatenate([[first], np.delete(np.arange(len(rows)), first)])
    new_number = np.argsort(order)  # by old number
    return rows[order], new_number[number[1:]]


def _distinct_kinds(
    entry: np.ndarray, leads_to: np.ndarray, deadline: Deadline
) -> tuple[np.ndarray, np.ndarray]:
    """Link kinds: the first set of classes of each, shape (J,), and the kind of every set, shape (Q,).

    `np.unique(axis=0)` would find equal rows, too, but takes a hundred times as long where rows are
    long. Here each row is one hashable value: eight cells to a byte, with the state it leads to.
    """
    packed = np.packbits(entry, axis=1)
    keys = [(row.tobytes(), state) for row, state in zip(packed, leads_to.tolist(), strict=True)]
    deadline.check()
    number = {key: j for j, key in enumerate(sorted(set(keys)))}
    kind_of = np.array([number[key] for key in keys])
    _, example = np.unique(kind_of, return_index=True)
    return example, kind_of
