"""What chosen stages use: GPUs of every class, and money. Shared by both small programs.

A solver compares sums within about 1e-6 of them. Where all GPUs together cost more than 200,000
whole units of price, one unit would be lost in that. Then a limit P on the price is kept in two
places, as one adds on paper: with every price p = step·a + b, 0 ≤ b < step, and a whole number z
that is carried,

    P mod step - (step - 1) ≤ Σ b n - step·z ≤ P mod step,        Σ a n + z ≤ P div step,

which some z satisfies if and only if Σ p n ≤ P, and neither row has large numbers on its right
side. (The lower side says that no more is carried than must be. Without it, SCIP 10's dual
presolving let sums pass that are one unit too large.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.formulations.aggregated.recipes import Recipes
from pipelab.engine.solvers.linear_program import Columns, RowBlock, incidence

__all__ = ["COARSE_UNITS", "Limits", "Usage", "price_step"]

COARSE_UNITS = 200_000  # sums of prices up to this are told apart by a solver


def price_step(rates: StageRates, prices: Sequence[int] | None) -> int:
    """1 where sums of whole prices are told apart as they are; else into what steps they are split."""
    used = min(len(rates.problem.cluster), rates.problem.model.layers * rates.largest)
    total = max(prices or [0]) * used
    return 1 if total <= COARSE_UNITS else max(1_000, -(-total // COARSE_UNITS))


@dataclass(frozen=True)
class Limits:
    """What a placement may use at most: GPUs, stages, money. None: as much as there is."""

    gpus: int | None = None
    stages: int | None = None
    price: int | None = None  # in the units of `prices`
    prices: tuple[int, ...] | None = None  # of one GPU of each class, in whole units


@dataclass(frozen=True, eq=False)
class Usage:
    """Rows over groups of columns: `n` counts chosen stages, `u` the GPUs of mixed draws, `z` what is carried.

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
        return [
            (r, n, c) for r, x in enumerate(self.found.recipes) for n, c in x.draws if len(c) > 1
        ]

    @cached_property
    def step(self) -> int:
        """Of split prices; 1 where they are not split."""
        return price_step(self.found.rates, self.limits.prices)

    @property
    def carries(self) -> bool:
        """Whether a limit on the price is kept in two rows, with one column `z`; then `u` must be whole too."""
        return self.limits.price is not None and self.step > 1

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

    def weights(
        self, columns: Columns, gpus: float = 0.0, stages: float = 0.0, price: float = 0.0
    ) -> np.ndarray:
        """An objective over all columns: so much for every GPU, every stage and every unit (or step) of price."""
        size = np.array([r.gpus for r in self.found.recipes], dtype=float)[self.recipe]
        out = np.zeros(columns.total)
        out[columns.slices["n"]] = gpus * size + stages
        if price:
            out += self._priced(columns, price * np.array(self.limits.prices) / self.step)
        return out

    def _priced(self, columns: Columns, own: np.ndarray) -> np.ndarray:
        """One number per column, from one per GPU of each class."""
        out, (fixed, drawn) = np.zeros(columns.total), self.gpus_by_class
        out[columns.slices["n"]], out[columns.slices["u"]] = own @ fixed, own @ drawn
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
            if name == "price" and self.carries:
                blocks |= self._carried(columns)
            elif most is not None:
                row = self.weights(columns, **weights)
                parts = {g: sp.csr_array(row[None, s]) for g, s in columns.slices.items()}
                blocks[f"most_{name}"] = columns.rows(parts, upper=float(most))
        return blocks

    def _carried(self, columns: Columns) -> dict[str, RowBlock]:
        """A limit on the price in two places; see the head of this file."""
        high, low = np.divmod(np.array(self.limits.prices), self.step)
        most_high, most_low = divmod(self.limits.price or 0, self.step)
        least_low = most_low - (self.step - 1)
        rows = {
            "most_price": (high, 1, -np.inf, most_high),
            "price_carry": (low, -self.step, least_low, most_low),
        }
        blocks = {}
        for name, (own, carried, least, most) in rows.items():
            row = self._priced(columns, own.astype(float))
            row[columns.slices["z"]] = carried
            parts = {g: sp.csr_array(row[None, s]) for g, s in columns.slices.items()}
            blocks[name] = columns.rows(parts, least, most)
        return blocks

    def _draws(self, columns: Columns) -> RowBlock:
        """The GPUs that a mixed draw takes from its classes add up to what its stages need."""
        recipes = [r for r, _, _ in self.mixed_draws]
        number = np.array([n for _, n, _ in self.mixed_draws], dtype=float)
        row = np.repeat(
            np.arange(len(recipes)), [len(classes) for _, _, classes in self.mixed_draws]
        )
        taken = incidence(row, len(recipes))
        needed = (
            sp.dia_array((number[None], [0]), shape=(len(number),) * 2) @ self.per_recipe[recipes]
        )
        return columns.rows({"u": taken, "n": -needed}, lower=0, upper=0)
