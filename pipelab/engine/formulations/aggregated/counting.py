"""The small integer program: how many stages of each recipe? For models with identical layers.

At a rate t, with z_p stages of piece p (a recipe with lo_p to hi_p layers):

- all L layers are held: Σ lo_p z_p ≤ L ≤ Σ hi_p z_p;
- no class gives more GPUs than it has;
- where some link is slower than t, the stages can be put in an order: as arcs between states
  they make one walk from the start (see `order` and `walk`);
- where the first or last layer differs from the others, one piece is the first and one the last,
  or one is both (see `ends`).

Its size depends on the number of classes and link kinds, not on the number of GPUs or layers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.engine.formulations.aggregated.ends import (
    ALONE,
    FIRST,
    INNER,
    LAST,
    ROLES,
    Ended,
    kinds_by_role,
)
from pipelab.engine.formulations.aggregated.order import Order
from pipelab.engine.formulations.aggregated.read_back import assign, spread_layers
from pipelab.engine.formulations.aggregated.recipes import Recipes
from pipelab.engine.formulations.aggregated.usage import Limits, Usage
from pipelab.engine.formulations.aggregated.walk import arrange, sequence, stages_by_kind, walk_rows
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock, incidence
from pipelab.placement import Placement


@dataclass(frozen=True, eq=False)
class Counting:
    """The counting program of the recipes for one rate, within some limits.

    Attributes
    ----------
    strict : 0, 1 or 2
        How much is demanded of arcs. 0: every state is left at most as often as it is reached;
        stages may then fall apart into a pipeline and circuits. 1: also a flow that reaches every
        stage. 2: also whole numbers. 2 is exact, 0 and 1 are quicker, never miss a placement, and
        mostly end with stages that can be put in an order.
    """

    found: Recipes
    limits: Limits
    strict: int = 0

    @cached_property
    def pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Recipe, fewest and most layers, and role of each piece (a run of consecutive sizes); shape (P,) each."""
        model, rows = self.found.rates.problem.model, []
        roles = (
            {INNER: np.arange(model.layers)}
            if model.uniform
            else kinds_by_role(runs_of(model), model.layers)
        )
        for r, recipe in enumerate(self.found.recipes):
            self.found.deadline.check()
            for role, kinds in roles.items():
                sizes = np.flatnonzero(np.isin(kinds, recipe.spans)) + (
                    model.layers if role == ALONE else 1
                )
                if len(sizes):
                    runs = np.split(sizes, np.flatnonzero(np.diff(sizes) > 1) + 1)
                    rows += [(r, run[0], run[-1], role) for run in runs]
        first, second, third, fourth = np.array(rows, dtype=int).reshape(-1, 4).T
        return first, second, third, fourth

    @cached_property
    def usage(self) -> Usage:
        """What the stages use, by class."""
        return Usage(self.found, self.limits, self.pieces[0])

    @cached_property
    def columns(self) -> Columns:
        """n: stages of each piece; u: GPUs of each class in mixed draws; y: stages on each arc; f: flow on it.

        z: what is carried from one place of a price to the next (`Usage`); b: stages in nodes (`Packing`).
        """
        arcs = 0 if self.found.order.free else len(self.order.arcs[0])
        sizes = {"n": len(self.pieces[0]), "u": self.usage.drawn, "y": arcs}
        return Columns(sizes | ({"f": arcs} if self.strict else {}) | self.usage.groups())

    @cached_property
    def order(self) -> Order | Ended:
        """How stages may follow each other."""
        return (
            self.found.order
            if self.found.rates.problem.model.uniform
            else Ended.of(self.found.order)
        )

    @cached_property
    def link_kind(self) -> np.ndarray:
        """Link kind of each piece in `order`; shape (P,)."""
        kind = np.array([r.link_kind for r in self.found.recipes], dtype=int)[self.pieces[0]]
        return (
            kind if self.found.rates.problem.model.uniform else kind * len(ROLES) + self.pieces[3]
        )

    def program(self, objective: np.ndarray | None = None) -> LinearProgram:
        """Find a placement, or the one with the greatest objective."""
        c = self.columns
        upper, integer = np.full(c.total, np.inf), np.zeros(c.total, dtype=bool)
        most = np.array([self.found.most(self.found.recipes[r]) for r in self.pieces[0]])
        upper[c.slices["n"]] = np.where(self.pieces[3] == INNER, most, np.minimum(most, 1))
        integer[c.slices["n"]] = True
        # With whole n, GPUs that can be shared out at all can be shared out whole, and so can arcs:
        # both are flows in a network. Only the condition that no cycle is disconnected breaks that.
        integer[c.slices["y"]] = self.strict == 2
        for name in self.usage.whole:
            integer[c.slices[name]] = True
        objective = np.zeros(c.total) if objective is None else objective
        return LinearProgram(c, np.zeros(c.total), upper, integer, objective, self.blocks())

    def blocks(self) -> dict[str, RowBlock]:
        """The rows, by name."""
        c, layers = self.columns, float(self.found.rates.problem.model.layers)
        _, low, high, role = self.pieces
        blocks = {
            "at_most_all_layers": c.rows(
                {"n": sp.csr_array(low[None].astype(float))}, upper=layers
            ),
            "at_least_all_layers": c.rows(
                {"n": sp.csr_array(high[None].astype(float))}, lower=layers
            ),
        }
        if not self.found.rates.problem.model.uniform:
            for name, end in (("one_first_stage", FIRST), ("one_last_stage", LAST)):
                has = (role == end) | (role == ALONE)
                blocks[name] = c.rows(
                    {"n": sp.csr_array(has[None].astype(float))}, lower=1, upper=1
                )
        return blocks | self.usage.blocks(c) | ({} if self.found.order.free else self._order_rows())

    def _order_rows(self) -> dict[str, RowBlock]:
        """Stages as arcs between states."""
        c, order = self.columns, self.order
        stages = incidence(self.link_kind, order.link_kinds)
        most = min(self.found.rates.problem.model.layers, int(self.found.rates.classes.count.sum()))
        blocks = {
            "one_arc_per_stage": c.rows(
                {"y": stages_by_kind(order), "n": -stages}, lower=0, upper=0
            )
        }
        return blocks | walk_rows(c, order, most if self.strict else None)

    def placement_of(self, x: np.ndarray, run: Callable) -> Placement | None:
        """The placement of a solution; None if its stages make no single pipeline.

        Parameters
        ----------
        x : float array, one value per column
        run : function of a LinearProgram
            Who arranges the stages where arcs may be split or form circuits.
        """
        number = np.rint(x[self.columns.slices["n"]]).astype(int)
        recipe, low, high, role = self.pieces
        place = np.array([1, 0, 2, 0])[role]  # in the middle, first, last, alone
        chosen = np.repeat(np.lexsort((-high, place)), number[np.lexsort((-high, place))])
        if self.found.order.free:  # long stages first
            pieces = chosen
        else:
            walk = self._walk(x, number, run)
            if walk is None:
                return None
            waiting = {k: iter(chosen[self.link_kind[chosen] == k].tolist()) for k in set(walk)}
            pieces = np.array([next(waiting[k]) for k in walk])
        sizes = spread_layers(low[pieces], high[pieces], self.found.rates.problem.model.layers)
        gpus = assign(
            self.found, [self.found.recipes[recipe[p]] for p in pieces], self.limits.prices
        )
        return Placement.of(zip(sizes, gpus, strict=True))

    def _walk(self, x: np.ndarray, number: np.ndarray, run: Callable) -> list[int] | None:
        if self.strict == 2:
            return sequence(self.order.arcs, np.rint(x[self.columns.slices["y"]]).astype(int))
        by_kind = np.bincount(self.link_kind, number, self.order.link_kinds).astype(int)
        return arrange(self.order, by_kind, run)
