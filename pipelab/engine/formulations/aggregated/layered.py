"""The layered form, for models whose layers differ: a stage's position in the model matters.

Boundaries between layers are nodes, candidate stages are arcs from the boundary before their
first layer to the one after their last. A placement is one path from the first boundary to
the last; no class gives more GPUs than it has. Where some link is slower than the rate, every
boundary is split by state (see `order`): a path reaches a boundary in the state that the last
stage leads to, chooses the link kind of the next stage there, and goes on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.engine.formulations.aggregated.read_back import assign
from pipelab.engine.formulations.aggregated.recipes import Recipes
from pipelab.engine.formulations.aggregated.usage import Limits, Usage
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock, incidence
from pipelab.placement import Placement


@dataclass(frozen=True, eq=False)
class Layered:
    """The layered program of the recipes for one rate; same use as `Counting`."""

    found: Recipes
    limits: Limits

    @cached_property
    def arcs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Recipe, first layer and the layer after the last of every candidate stage; shape (P,) each."""
        spans, layers = (
            runs_of(self.found.rates.problem.model),
            self.found.rates.problem.model.layers,
        )
        rows = []
        for first in range(layers):
            kinds = spans.kind[first, : layers - first]
            for r, recipe in enumerate(self.found.recipes):
                self.found.deadline.check()
                size = np.flatnonzero(np.isin(kinds, recipe.spans)) + 1
                rows.append(
                    np.stack([np.full_like(size, r), np.full_like(size, first), first + size])
                )
        return tuple(np.concatenate(rows, axis=1)) if rows else (np.zeros(0, int),) * 3

    @cached_property
    def hops(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boundary, state and link kind of every choice of what comes next; shape (H,) each."""
        kind, state = np.nonzero(self.found.order.entry)
        layers = self.found.rates.problem.model.layers
        at = np.repeat(np.arange(layers), len(kind))
        state, kind = np.tile(state, layers), np.tile(kind, layers)
        possible = (at > 0) | (state == 0)  # at the start there is one state
        return at[possible], state[possible], kind[possible]

    @cached_property
    def columns(self) -> Columns:
        """n: which stages are chosen; u: GPUs of each class in mixed draws; y: which hops are taken; z: carried."""
        sizes = {"n": len(self.arcs[0]), "u": self.usage.drawn, "y": len(self.hops[0])}
        return Columns(sizes | self.usage.groups())

    @cached_property
    def usage(self) -> Usage:
        """What the stages use, by class."""
        return Usage(self.found, self.limits, self.arcs[0])

    def program(self, objective: np.ndarray | None = None) -> LinearProgram:
        """Find a placement, or the one with the greatest objective."""
        c = self.columns
        upper, integer = np.full(c.total, np.inf), np.zeros(c.total, dtype=bool)
        upper[c.slices["n"]], integer[c.slices["n"]] = 1, True
        for name in self.usage.whole:
            integer[c.slices[name]] = True
        objective = np.zeros(c.total) if objective is None else objective
        return LinearProgram(c, np.zeros(c.total), upper, integer, objective, self.blocks())

    def blocks(self) -> dict[str, RowBlock]:
        """The rows, by name."""
        return self.usage.blocks(self.columns) | self._path_rows()

    def _path_rows(self) -> dict[str, RowBlock]:
        """Arrive in a state, choose a link kind, leave with a stage of that kind; end at the last boundary."""
        c, order = self.columns, self.found.order
        layers = self.found.rates.problem.model.layers
        recipe, first, last = self.arcs
        kind = np.array([r.link_kind for r in self.found.recipes], dtype=int)[recipe]
        states, kinds = len(order.follows), len(order.leads_to)
        at, state, choice = self.hops
        inner = last < layers
        reached = last[inner] * states + order.leads_to[kind[inner]]
        arrive = incidence(reached, layers * states, np.flatnonzero(inner), len(recipe))
        choose = incidence(at * states + state, layers * states)
        chosen = incidence(at * kinds + choice, layers * kinds)
        leave = incidence(first * kinds + kind, layers * kinds)
        flow = c.rows({"n": arrive, "y": -choose}, lower=0, upper=0)
        flow.lower[0] = flow.upper[0] = -1  # the path begins at the first boundary, in state 0
        end = sp.csr_array((~inner)[None].astype(float))
        return {
            "arrive_then_choose": flow,
            "choose_then_leave": c.rows({"y": chosen, "n": -leave}, lower=0, upper=0),
            "arrive_at_the_end": c.rows({"n": end}, lower=1, upper=1),
        }

    def placement_of(self, x: np.ndarray, run: Callable) -> Placement:
        """The placement of a solution: the chosen stages by first layer; see `Counting.placement_of`."""
        recipe, first, last = self.arcs
        chosen = np.flatnonzero(x[self.columns.slices["n"]] > 0.5)
        chosen = chosen[np.argsort(first[chosen])]
        gpus = assign(
            self.found, [self.found.recipes[r] for r in recipe[chosen]], self.limits.prices
        )
        return Placement.of(zip((last - first)[chosen].tolist(), gpus, strict=True))
