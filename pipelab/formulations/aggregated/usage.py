"""What chosen stages use: GPUs of every class, and money. Shared by both small programs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.formulations.aggregated.recipes import Recipes
from pipelab.program import Columns, RowBlock, incidence

__all__ = ["Limits", "Usage"]


@dataclass(frozen=True)
class Limits:
    """What a placement may use at most: GPUs, stages, money. None: as much as there is."""

    gpus: int | None = None
    stages: int | None = None
    price: int | None = None  # in the units of `prices`
    prices: tuple[int, ...] | None = None  # of one GPU of each class, in whole units


@dataclass(frozen=True, eq=False)
class Usage:
    """Rows over two groups of columns: `n` counts chosen stages, `u` the GPUs of mixed draws.

    Attributes
    ----------
    recipe : int array, shape (P,)
        The recipe whose stages each column of `n` counts.
    """

    found: Recipes
    limits: Limits
    recipe: np.ndarray

    @cached_property
    def mixed_draws(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """(recipe, GPUs, classes) of every draw that may mix classes; one column of `u` for each class."""
        return [(r, n, c) for r, x in enumerate(self.found.recipes) for n, c in x.draws if len(c) > 1]

    @property
    def drawn(self) -> int:
        """Number of columns of `u`."""
        return sum(len(classes) for _, _, classes in self.mixed_draws)

    @cached_property
    def per_recipe(self) -> sp.csr_array:
        """Which columns of `n` belong to which recipe; shape (R, P)."""
        return incidence(self.recipe, len(self.found.recipes))

    @cached_property
    def gpus_by_class(self) -> tuple[sp.csr_array, sp.csr_array]:
        """GPUs of each class per unit of each column of `n` and `u`; shapes (A, P) and (A, u)."""
        fixed = np.zeros((len(self.found.rates.classes), len(self.found.recipes)))
        for r, recipe in enumerate(self.found.recipes):
            for number, classes in recipe.draws:
                if len(classes) == 1:
                    fixed[classes[0], r] += number
        drawn = np.array([a for _, _, own in self.mixed_draws for a in own], dtype=int)
        return sp.csr_array(fixed) @ self.per_recipe, incidence(drawn, len(fixed))

    def weights(self, columns: Columns, gpus: float = 0.0, stages: float = 0.0, price: float = 0.0) -> np.ndarray:
        """An objective over all columns: so much for every GPU, every stage and every unit of price."""
        size = np.array([r.gpus for r in self.found.recipes], dtype=float)[self.recipe]
        out = np.zeros(columns.total)
        out[columns.slices["n"]] = gpus * size + stages
        if price:
            own = price * np.array(self.limits.prices, dtype=float)
            fixed, drawn = self.gpus_by_class
            out[columns.slices["n"]] += own @ fixed
            out[columns.slices["u"]] += own @ drawn
        return out

    def blocks(self, columns: Columns) -> dict[str, RowBlock]:
        """No class gives more GPUs than it has; draws get what they need; limits are kept."""
        fixed, drawn = self.gpus_by_class
        blocks = {"class_capacity": columns.rows({"n": fixed, "u": drawn})}
        blocks["class_capacity"].upper[:] = self.found.rates.classes.count
        if self.mixed_draws:
            blocks["draws"] = self._draws(columns)
        objectives: Mapping[str, dict] = {name: {name: 1.0} for name in ("gpus", "stages", "price")}
        for name, weights in objectives.items():
            most = getattr(self.limits, name)
            if most is not None:
                row = self.weights(columns, **weights)
                parts = {g: sp.csr_array(row[None, s]) for g, s in columns.slices.items()}
                blocks[f"most_{name}"] = columns.rows(parts, upper=float(most))
        return blocks

    def _draws(self, columns: Columns) -> RowBlock:
        """The GPUs that a mixed draw takes from its classes add up to what its stages need."""
        recipes = [r for r, _, _ in self.mixed_draws]
        number = np.array([n for _, n, _ in self.mixed_draws], dtype=float)
        row = np.repeat(np.arange(len(recipes)), [len(classes) for _, _, classes in self.mixed_draws])
        taken = incidence(row, len(recipes))
        needed = sp.dia_array((number[None], [0]), shape=(len(number),) * 2) @ self.per_recipe[recipes]
        return columns.rows({"u": taken, "n": -needed}, lower=0, upper=0)
