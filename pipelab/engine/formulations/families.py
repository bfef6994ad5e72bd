"""The registry of constraint families: a family is explained, counted and built in one place.

A notebook shows a family's sentence, formula and row count; the solver gets the rows. Formula and
rows are written by hand, side by side. Tests compare the rows with the count, and at random points
with the cvxpy line of `pipelab.joint_ilp` or of the tests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from pipelab.engine.formulations.candidates import Candidates
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock


@dataclass(frozen=True)
class Symbol:
    """A symbol of the formulation and its name in code."""

    letter: str  # LaTeX
    code: str
    meaning: str
    unit: str


@dataclass(frozen=True, eq=False)
class Domain:
    """Values that a column group may take: 0 ≤ x ≤ upper, whole or not."""

    upper: float | np.ndarray
    whole: bool


@dataclass(frozen=True)
class Family:
    """One family of constraints.

    Attributes
    ----------
    name : str
        Name of its rows: `layer_coverage[3]`.
    sentence : str
        One row read aloud.
    formula : str
        LaTeX.
    group : str
        "logic", "throughput" or "strengthening".
    count : function
        From the numbers of `count_candidates` to the number of rows.
    counted_as : str
        The same count in words.
    rows : function of (Incidence, Columns) to RowBlock
    """

    name: str
    sentence: str
    formula: str
    group: str
    counted_as: str
    count: Callable[[Mapping[str, int]], int]
    rows: Callable[[Any, Columns], RowBlock]  # of the formulation's own `Incidence`


@dataclass(frozen=True, eq=False)
class Incidence:
    """The candidates as 0–1 matrices, from which every family is one line.

    Attributes
    ----------
    candidates : Candidates
    big_m_stage, big_m_link : float
        The M of the two end-to-end families.
    cap_links : bool
        Count no link as faster than the fastest stage. No placement is, so nothing changes
        but the numbers: a link a million times as fast as a stage would make solvers, which
        compute to about 1e-9, take a tiny part of it for a whole stage.
    """

    candidates: Candidates
    big_m_stage: float
    big_m_link: float
    cap_links: bool = True

    @cached_property
    def covers(self) -> sp.csr_array:
        """Layer l is in allocation a; shape (M, A)."""
        c = self.candidates
        layer = np.arange(c.layers)[:, None]
        return sp.csr_array((c.start <= layer) & (layer < c.stop), dtype=float)

    @cached_property
    def uses(self) -> sp.csr_array:
        """GPU g is in allocation a; shape (N, A)."""
        return sp.csr_array(self.candidates.membership[self.candidates.set_of].T, dtype=float)

    @cached_property
    def first(self) -> sp.csr_array:
        """Allocation a starts at the first layer; shape (1, A)."""
        return sp.csr_array((self.candidates.start == 0)[None, :], dtype=float)

    @cached_property
    def last(self) -> sp.csr_array:
        """Allocation a ends at the last layer; shape (1, A)."""
        return sp.csr_array((self.candidates.stop == self.candidates.layers)[None, :], dtype=float)

    @cached_property
    def leaves(self) -> sp.csr_array:
        """Connection x leaves allocation a; shape (A, E)."""
        return self._ends_at(self.candidates.tail)

    @cached_property
    def enters(self) -> sp.csr_array:
        """Connection x enters allocation a; shape (A, E)."""
        return self._ends_at(self.candidates.head)

    @cached_property
    def crosses(self) -> sp.csr_array:
        """Connection x crosses the boundary after layer l = 1 … M-1; shape (M-1, E)."""
        c = self.candidates
        boundary = c.start[c.head] - 1
        ones = np.ones(len(boundary))
        return sp.csr_array(
            (ones, (boundary, np.arange(len(boundary)))), shape=(c.layers - 1, len(boundary))
        )

    @cached_property
    def followed(self) -> np.ndarray:
        """Numbers of the allocations that have a successor."""
        return np.unique(self.candidates.tail)

    @cached_property
    def preceded(self) -> np.ndarray:
        """Numbers of the allocations that have a predecessor."""
        return np.unique(self.candidates.head)

    @cached_property
    def theta(self) -> sp.dia_array:
        """θ on a diagonal; shape (A, A)."""
        return sp.diags_array(self.candidates.throughput)

    @cached_property
    def nu(self) -> sp.dia_array:
        """ν on a diagonal; shape (E, E)."""
        rates = self.candidates.link_throughput
        top = self.candidates.throughput.max(initial=0.0)
        return sp.diags_array(np.minimum(rates, top) if self.cap_links else rates)

    def each_allocation(self) -> sp.dia_array:
        """One row per allocation; shape (A, A)."""
        return sp.eye_array(len(self.candidates.start))

    def each_connection(self) -> sp.dia_array:
        """One row per connection; shape (E, E)."""
        return sp.eye_array(len(self.candidates.tail))

    def pick(self, allocations: np.ndarray) -> sp.csr_array:
        """One row per named allocation; shape (len(allocations), A)."""
        ones = np.ones(len(allocations))
        shape = (len(allocations), len(self.candidates.start))
        return sp.csr_array((ones, (np.arange(len(allocations)), allocations)), shape=shape)

    def _ends_at(self, end: np.ndarray) -> sp.csr_array:
        ones = np.ones(len(end))
        return sp.csr_array(
            (ones, (end, np.arange(len(end)))), shape=(len(self.candidates.start), len(end))
        )


def maximise_t(
    columns: Columns, domains: Mapping[str, Domain], families: Any, incidence: Incidence
) -> LinearProgram:
    """The program: maximise t over these domains subject to these families."""
    upper, integer, objective = (
        np.empty(columns.total),
        np.zeros(columns.total, dtype=bool),
        np.zeros(columns.total),
    )
    for group, where in columns.slices.items():
        upper[where], integer[where] = domains[group].upper, domains[group].whole
    objective[columns.slices["t"]] = 1
    blocks = {}
    for family in families:
        incidence.candidates.deadline.check()
        blocks[family.name] = family.rows(incidence, columns)
    return LinearProgram(columns, np.zeros(columns.total), upper, integer, objective, blocks)
