"""What chosen stages use: GPUs of every class, and money. Shared by both counting programs.

Prices are whole units. A solver compares sums to within about 1e-6 of them, so in a sum of more
than 200,000 units one unit is lost. Where all GPUs together cost more than that, every price is
split into two digits to the base `step`, and a limit on the sum is checked as one adds on paper,
digit by digit, with a whole number z that is carried. For step = 1,000:

                              high    low
    one stage    700,600       700    600
    another      533,900       533    900
    sum        1,234,500     1,233  1,500      carry z = 1:  1,234 | 500
    limit      1,234,567     1,234    567

With p = step · high + low for every price, and P the limit, the two rows are

    P mod step - (step - 1) ≤ Σ low·n - step·z ≤ P mod step        and        Σ high·n + z ≤ P div step

Some z satisfies both if and only if Σ p·n ≤ P, and neither row has a large number on its right. The
lower side of the first says that no more is carried than must be. Without it, SCIP 10's dual
presolving let sums pass that are one unit too large.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.engine.formulations.aggregated.packing import Packing
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.formulations.aggregated.recipes import Recipes
from pipelab.engine.solvers.linear_program import Columns, RowBlock, incidence

COARSE_UNITS = 200_000  # a solver distinguishes sums of prices up to this


def price_step(rates: StageRates, prices: Sequence[int] | None) -> int:
    """The base of the two digits that prices are split into; 1 where sums are small enough as they are."""
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
    """Rows over groups of columns: `n` counts chosen stages, `u` the GPUs of mixed draws, `z` is the carry.

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
        """The base of split prices; 1 where they are not split."""
        return price_step(self.found.rates, self.limits.prices)

    @property
    def carries(self) -> bool:
        """Whether a limit on the price takes two rows and a column `z`; then `u` must be whole, too."""
        return self.limits.price is not None and self.step > 1

    @cached_property
    def packing(self) -> Packing:
        """What keeps stages inside nodes."""
        return Packing.of(self.found)

    def groups(self) -> dict[str, int]:
        """Groups of columns besides `n`, with their sizes; without those that are not needed."""
        sizes = {"z": int(self.carries), "b": self.packing.columns}
        return {"u": self.drawn} | {name: number for name, number in sizes.items() if number}

    @property
    def whole(self) -> tuple[str, ...]:
        """Groups of columns that must be whole numbers, besides `n`."""
        return (("u", "z") if self.carries else ()) + (("b",) if self.packing.columns else ())

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
        """An objective over all columns: a weight for every GPU, every stage and every `step` units of price."""
        size = np.array([r.gpus for r in self.found.recipes], dtype=float)[self.recipe]
        out = np.zeros(columns.total)
        out[columns.slices["n"]] = gpus * size + stages
        if price:
            out += self._per_gpu(columns, price * np.array(self.limits.prices) / self.step)
        return out

    def blocks(self, columns: Columns) -> dict[str, RowBlock]:
        """No class gives more GPUs than it has; draws get what they need; limits are kept."""
        fixed, drawn = self.gpus_by_class
        blocks = {"class_capacity": columns.rows({"n": fixed, "u": drawn})}
        blocks["class_capacity"].upper[:] = self.found.rates.classes.count
        blocks |= self.packing.blocks(columns, self.per_recipe)
        if self.mixed_draws:
            blocks["draws"] = self._draws(columns)
        if self.limits.gpus is not None:
            row = self.weights(columns, gpus=1.0)
            blocks["most_gpus"] = _one_row(columns, row, -np.inf, self.limits.gpus)
        if self.limits.stages is not None:
            row = self.weights(columns, stages=1.0)
            blocks["most_stages"] = _one_row(columns, row, -np.inf, self.limits.stages)
        if self.carries:
            blocks |= self._two_price_rows(columns)
        elif self.limits.price is not None:
            row = self.weights(columns, price=1.0)
            blocks["most_price"] = _one_row(columns, row, -np.inf, self.limits.price)
        return blocks

    def _two_price_rows(self, columns: Columns) -> dict[str, RowBlock]:
        """A limit on the price, digit by digit; see the head of this file."""
        high, low = np.divmod(np.array(self.limits.prices), self.step)
        most_high, most_low = divmod(self.limits.price or 0, self.step)
        high_row = self._per_gpu(columns, high.astype(float))
        high_row[columns.slices["z"]] = 1
        low_row = self._per_gpu(columns, low.astype(float))
        low_row[columns.slices["z"]] = -self.step
        least_low = most_low - (self.step - 1)
        return {
            "most_price": _one_row(columns, high_row, -np.inf, most_high),
            "price_carry": _one_row(columns, low_row, least_low, most_low),
        }

    def _per_gpu(self, columns: Columns, each: np.ndarray) -> np.ndarray:
        """What every column adds to a sum over GPUs, from the share of one GPU of each class."""
        out, (fixed, drawn) = np.zeros(columns.total), self.gpus_by_class
        out[columns.slices["n"]], out[columns.slices["u"]] = each @ fixed, each @ drawn
        return out

    def _draws(self, columns: Columns) -> RowBlock:
        """The GPUs that a mixed draw takes from its classes add up to what its stages need."""
        recipes = [recipe for recipe, _, _ in self.mixed_draws]
        number = np.array([number for _, number, _ in self.mixed_draws], dtype=float)
        classes = [len(own) for _, _, own in self.mixed_draws]  # one column of `u` for each
        taken = incidence(np.repeat(np.arange(len(recipes)), classes), len(recipes))
        needed = sp.diags_array(number) @ self.per_recipe[recipes]
        return columns.rows({"u": taken, "n": -needed}, lower=0, upper=0)


def _one_row(columns: Columns, row: np.ndarray, lower: float, upper: float) -> RowBlock:
    parts = {group: sp.csr_array(row[None, where]) for group, where in columns.slices.items()}
    return columns.rows(parts, lower, upper)
