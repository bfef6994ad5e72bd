"""Stages that must lie inside one node: their sizes must pack into the nodes. Cutting stock.

A class of GPUs may be spread over many nodes, its bins. Of the stages that lie inside one node,
n_s have s GPUs. They can be packed into bins of c_1, c_2, … GPUs

- if and only if, for each size s, those of at least s GPUs fit after rounding bins down,
  Σ_(r ≥ s) r · n_r ≤ s · Σ_i floor(c_i / s), where every size divides the next (1, 2, 4, 8);
- otherwise, if and only if there is a flow from the beginnings of bins to the right: an arc from
  position i to i + s is a stage of s GPUs, and each bin is one path (arc flow, Valério de Carvalho 1999).

Both keep the linear relaxation as tight as listing all patterns of a node would, without listing any.
What is left over in bins serves stages that may lie anywhere: they need no rows here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from pipelab.engine.solvers.linear_program import RowBlock, VariableGroups, incidence
from pipelab.errors import PipelabError


@dataclass(frozen=True, eq=False)
class Packing:
    """Stages inside the nodes of one class.

    Attributes
    ----------
    recipe, size : int arrays, shape (R,)
        Recipes of such stages, and the number of GPUs of each.
    nodes : tuple of B int arrays
        GPU ids of the class in each node.
    """

    recipe: np.ndarray
    size: np.ndarray
    nodes: tuple[np.ndarray, ...]

    @cached_property
    def capacity(self) -> np.ndarray:
        """Number of GPUs in each node; shape (B,)."""
        return np.array([len(node) for node in self.nodes])

    @cached_property
    def sizes(self) -> list[int]:
        """The different sizes, ascending."""
        return np.unique(self.size).tolist()

    @cached_property
    def divides(self) -> bool:
        """Whether every size divides the next."""
        return all(large % small == 0 for small, large in pairwise(self.sizes))

    @cached_property
    def arcs(self) -> tuple[np.ndarray, np.ndarray]:
        """First position and size of every arc; bins begin where they end together at the last position."""
        end = int(self.capacity.max())
        reached = set((end - self.capacity).tolist())
        reachable = []
        for i in range(end):
            if i in reached:
                ending = [(i, s) for s in self.sizes if i + s <= end]
                reached |= {i + s for i, s in ending}
                reachable += ending
        first, size = np.array(reachable, dtype=int).reshape(-1, 2).T
        return first, size

    @cached_property
    def _flow(self) -> tuple[sp.csr_array, np.ndarray, sp.csr_array]:
        """By position but the last what leaves it, less what reaches it, and the bins that begin; arcs by size."""
        first, size = self.arcs
        end = int(self.capacity.max())
        flow = incidence(first, end + 1) - incidence(first + size, end + 1)
        begins = np.bincount(end - self.capacity, minlength=end + 1).astype(float)
        arcs = incidence(np.searchsorted(self.sizes, size), len(self.sizes))
        return flow[:end], begins[:end], arcs

    @property
    def columns(self) -> int:
        """Arcs that the program needs; 0 where sizes divide one another."""
        return 0 if self.divides else len(self.arcs[0])

    def rows(
        self, columns: VariableGroups, offset: int, per_recipe: sp.csr_array
    ) -> tuple[RowBlock, ...]:
        """Return rows over `n` and, from column `offset` on, over `b`."""
        mine = per_recipe[self.recipe]
        if self.divides:
            need = np.array([np.where(self.size >= s, self.size, 0) for s in self.sizes])
            room = np.array([s * int((self.capacity // s).sum()) for s in self.sizes])
            return (columns.rows({"n": sp.csr_array(need.astype(float)) @ mine}, upper=room),)
        number = len(self.arcs[0])
        if not number:  # no size fits into any bin
            return (columns.rows({"n": mine}, upper=0),)
        flow, begins, arcs = self._flow
        own = np.arange(number)
        here = incidence(own, number, offset + own, columns.sizes["b"])
        leave = columns.rows({"b": flow @ here}, upper=begins)
        stages = incidence(np.searchsorted(self.sizes, self.size), len(self.sizes)) @ mine
        return leave, columns.rows({"b": arcs @ here, "n": -stages}, lower=0, upper=0)

    def packed(self, sizes: Sequence[int]) -> list[int]:
        """Return the bin of every stage of these sizes.

        Raises
        ------
        PipelabError
            They do not fit.
        """
        order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
        free, out = self.capacity.copy(), [0] * len(sizes)
        for i in order:  # into the fullest bin that has room
            room = np.where(free >= sizes[i], free, np.iinfo(free.dtype).max)
            best = int(room.argmin())
            if free[best] < sizes[i]:
                return self._packed_by_program(sizes, order)
            out[i] = best
            free[best] -= sizes[i]
        return out

    def _packed_by_program(self, sizes: Sequence[int], order: list[int]) -> list[int]:
        """Pack by numbers of each size in each bin, where the rule above does not find room."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        kinds, bins = self.sizes, len(self.capacity)
        number = np.array([list(sizes).count(size) for size in kinds])
        answer = milp(
            np.zeros(len(kinds) * bins),
            integrality=1,
            bounds=Bounds(0, np.inf),
            constraints=[
                LinearConstraint(np.kron(np.eye(len(kinds)), np.ones(bins)), number, number),
                LinearConstraint(np.kron(kinds, np.eye(bins)), ub=self.capacity),
            ],
        )
        if answer.x is None:
            raise PipelabError("a solver returned stages that do not fit into the nodes")
        out = [0] * len(sizes)
        for size, in_bin in zip(kinds, np.rint(answer.x).reshape(-1, bins), strict=True):
            of_size = [i for i in order if sizes[i] == size]
            for i, b in zip(of_size, np.repeat(np.arange(bins), in_bin.astype(int)), strict=True):
                out[i] = int(b)
        return out
