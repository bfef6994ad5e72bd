"""Layers identical except at the two ends: the first and the last stage of a pipeline are counted apart.

The stage that holds the embedding must come first, the one with the head last; all others are
identical in every position. So a stage has one of four *roles*, and the walk over states (see
`order`) begins with a first stage and ends with a last one, or is one stage alone.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipelab.engine.formulations.aggregated.order import Order
from pipelab.engine.layer_runs import Spans

INNER, FIRST, LAST, ALONE = ROLES = range(4)


def kinds_by_role(spans: Spans, layers: int) -> dict[int, np.ndarray]:
    """The kind of span of 1, 2, … layers for a stage of each role."""
    number = np.arange(1, layers)
    return {
        INNER: spans.kind[min(1, layers - 1), : max(0, layers - 2)],
        FIRST: spans.kind[0, : layers - 1],
        LAST: spans.kind[layers - number, number - 1],
        ALONE: spans.kind[0, layers - 1 :],
    }


@dataclass(frozen=True, eq=False)
class Ended:
    """An order whose walks begin with a first stage and end with a last one; same use as `Order`.

    State 0 is the start, the last state the end; between them lie those of `base`.

    Attributes
    ----------
    base : Order
    passed : int array, shape (J, 2)
        Link kind in `base` and role of every link kind here.
    """

    base: Order
    passed: np.ndarray

    @classmethod
    def of(cls, base: Order) -> "Ended":
        """With every role for every link kind; kind j in role r is number 4j + r."""
        kind, role = np.meshgrid(np.arange(base.link_kinds), ROLES, indexing="ij")
        return cls(base, np.stack([kind.ravel(), role.ravel()], axis=1))

    @property
    def states(self) -> int:
        """Number of states."""
        return self.base.states + 2

    @property
    def link_kinds(self) -> int:
        """Number of link kinds."""
        return len(self.passed)

    @cached_property
    def arcs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `Order.arcs`."""
        left, reached, kind = self.base.arcs
        end, every = self.states - 1, np.arange(self.base.link_kinds)
        start, passing = np.zeros_like(every), kind >= 0
        rows = [  # state left, state reached, link kind of the base, role
            (left + 1, reached + 1, kind, np.full_like(kind, INNER)),
            (start, self.base.leads_to + 1, every, start + FIRST),
            (
                left[passing] + 1,
                np.full(passing.sum(), end),
                kind[passing],
                np.full(passing.sum(), LAST),
            ),
            (start, start + end, every, start + ALONE),
        ]
        left, reached, kind, role = (np.concatenate(column) for column in zip(*rows, strict=True))
        # the last row: steps that pass no stage
        number = np.full((self.base.link_kinds + 1, len(ROLES)), -1)
        number[tuple(self.passed.T)] = np.arange(self.link_kinds)
        mine = number[kind, role]
        kept = (mine >= 0) | (kind < 0)
        return left[kept], reached[kept], mine[kept]

    def only(self, kinds: np.ndarray) -> "Ended":
        """The same for stages of these link kinds alone."""
        base, mine = np.unique(self.passed[kinds, 0], return_inverse=True)
        return Ended(
            self.base.only(base), np.stack([mine.reshape(-1), self.passed[kinds, 1]], axis=1)
        )
