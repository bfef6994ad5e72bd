"""A mixed-integer linear program as arrays: what a formulation hands to a solver.

Nothing here knows placements, SCIP or HiGHS. Columns come in named groups (`z`, `e`, …),
rows in named blocks, so that a row can be spoken of as `layer_coverage[3]`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import scipy.sparse as sp

Values = Mapping[str, Any]  # by group: an array, or one number for all of its columns


def incidence(
    row: np.ndarray, height: int, column: np.ndarray | None = None, width: int | None = None
) -> sp.csr_array:
    """Return a matrix of ones at (row, column); by default one in every column."""
    column = np.arange(len(row)) if column is None else column
    return sp.csr_array(
        (np.ones(len(row)), (row, column)), shape=(height, len(row) if width is None else width)
    )


@dataclass(frozen=True)
class VariableGroups:
    """Named groups of columns, side by side.

    Parameters
    ----------
    sizes : mapping of group name to number of columns, in order
    """

    sizes: Mapping[str, int]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The position of each group in a vector of all columns."""
        ends = np.cumsum(list(self.sizes.values()))
        return {
            n: slice(int(e - s), int(e)) for (n, s), e in zip(self.sizes.items(), ends, strict=True)
        }

    @property
    def total(self) -> int:
        """Number of columns of all groups."""
        return sum(self.sizes.values())

    def rows(
        self,
        parts: Mapping[str, sp.sparray],
        lower: np.ndarray | float = -np.inf,
        upper: np.ndarray | float = np.inf,
    ) -> "RowBlock":
        """Return rows lower ≤ Σ_group part · columns ≤ upper; groups not named are not used."""
        # Put together by hand: scipy's hstack of many small blocks costs more than small programs
        # take to solve.
        blocks = {g: part if sp.issparse(part) else sp.coo_array(part) for g, part in parts.items()}
        height = next(iter(blocks.values())).shape[0]
        entries = [(b.tocoo(), self.slices[g].start) for g, b in blocks.items()]
        row = np.concatenate([b.row for b, _ in entries])
        column = np.concatenate([b.col + first for b, first in entries])
        data = np.concatenate([b.data for b, _ in entries]).astype(float)
        matrix = sp.csr_array((data, (row, column)), shape=(height, self.total))
        return RowBlock(
            matrix=matrix,
            lower=np.full(height, lower, dtype=float),
            upper=np.full(height, upper, dtype=float),
        )

    def program(
        self,
        objective: Values,
        blocks: Mapping[str, "RowBlock"],
        *,
        lower: Values = MappingProxyType({}),
        upper: Values = MappingProxyType({}),
        integer: Collection[str] = (),
    ) -> "LinearProgram":
        """Return the program of these columns and rows, from values by group.

        Parameters
        ----------
        objective, lower, upper : mapping of group name to numbers
            Of groups that are not named: 0, 0 and infinite.
        blocks : mapping of str to RowBlock
        integer : collection of str
            Groups of whole numbers.
        """
        return LinearProgram(
            columns=self,
            lower=self._filled(0.0, lower),
            upper=self._filled(np.inf, upper),
            integer=self._filled(0.0, dict.fromkeys(integer, 1.0)) > 0,
            objective=self._filled(0.0, objective),
            blocks=blocks,
        )

    def _filled(self, others: float, parts: Values) -> np.ndarray:
        out = np.full(self.total, others)
        for group, values in parts.items():
            out[self.slices[group]] = values
        return out


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows lower ≤ matrix · x ≤ upper."""

    matrix: sp.csr_array
    lower: np.ndarray
    upper: np.ndarray

    def __len__(self) -> int:
        return self.matrix.shape[0]


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """Maximise objective · x subject to bounds, whole-number columns and blocks of rows."""

    columns: VariableGroups
    lower: np.ndarray
    upper: np.ndarray
    integer: np.ndarray
    objective: np.ndarray
    blocks: Mapping[str, RowBlock]

    @property
    def rows(self) -> RowBlock:
        """All rows, block after block."""
        blocks = self.blocks.values()
        none = sp.csr_array((0, self.columns.total))
        return RowBlock(
            matrix=sp.vstack([none, *(block.matrix for block in blocks)], format="csr"),
            lower=np.concatenate([[], *(block.lower for block in blocks)]),
            upper=np.concatenate([[], *(block.upper for block in blocks)]),
        )

    @property
    def size(self) -> dict[str, int]:
        """Numbers of variables, whole-number variables, rows and non-zeros."""
        return {
            "variables": self.columns.total,
            "integer_variables": int(self.integer.sum()),
            "rows": sum(len(block) for block in self.blocks.values()),
            "nonzeros": sum(block.matrix.nnz for block in self.blocks.values()),
        }

    def relaxed(self) -> "LinearProgram":
        """Drop the demand for whole numbers: the linear relaxation."""
        return replace(self, integer=np.zeros_like(self.integer))
