"""The master program: how many pipelines there are of each column, and the prices of GPUs that follow.

`column_generation` has the formulas. Its columns are pipelines. Over stages, each counted as the part of a pipeline
that it may be, the same program is the work bound (`stages_as_columns`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.paths import StageOf
from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.prices import row_limit, total
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import LinearProgram, VariableGroups
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.fields import given

_UNITS_OF_LOWEST_PRICE = 1_000  # solvers compare within 1e-6 of a unit


class PipelineColumn(NamedTuple):
    """A pipeline as the master program sees it.

    Attributes
    ----------
    rate : float
        What it attains, in tokens/s; without stages, no pipeline of its GPUs attains more.
    gpus : tuple of int
        Numbers of GPUs of each class.
    offer : Offer
        The workload that it is for.
    stages : tuple of (int, tuple of int)
        Layers and GPUs by class of each; empty for a path that counts for the bound only, as it has more GPUs of a
        class than there are, and where `at` says which they are.
    at : int
        Number of the rate in the offer's `MixTables` at which such a pipeline was found; -1 if none.
    """

    rate: float
    gpus: tuple[int, ...]
    offer: Offer
    stages: tuple[StageOf, ...]
    at: int = -1

    @property
    def exists(self) -> bool:
        """Whether it is a pipeline on the GPUs there are."""
        return bool(self.stages) or self.at >= 0


@dataclass(frozen=True, eq=False)
class DeploymentGoal:
    """What a deployment is to be best at, and what it may use.

    Attributes
    ----------
    counts : int array, shape (A,)
        GPUs of each class.
    load : float
        Tokens/s or requests/s to be served at the least price; 0: as many as possible, whatever the price.
    price : float array, shape (A,)
        Dollars per hour of a GPU of each class; read with a load or a budget only.
    budget : float
        The most that all GPUs together may cost, in dollars per hour.
    most_of : mapping of float to int
        The most GPUs of each price, where that is limited.
    pools : mapping of str to float
        Of each pool (`Offer.pool`), how many of its tokens make one of what is served: 1, or those of a request.
    """

    counts: np.ndarray
    load: float
    price: np.ndarray
    budget: float = np.inf
    most_of: Mapping[float, int] = field(default_factory=dict)
    pools: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})

    def value(self, columns: Sequence[PipelineColumn]) -> float:
        """Return what these pipelines are compared by: tokens/s or requests/s, or with a load dollars per hour."""
        if not self.load:
            return min(self.serves(columns).values())
        return total(self.paid(columns))

    def paid(self, columns: Sequence[PipelineColumn]) -> Counter[float]:
        """Count the GPUs of each price that these pipelines use."""
        numbers = Counter[float]()
        for column in columns:
            for price, number in zip(self.price.tolist(), column.gpus, strict=True):
                numbers[price] += number
        return +numbers

    @property
    def price_unit(self) -> float:
        """The dollars per hour in which the program counts prices."""
        return float(self.price[self.price > 0].min()) / _UNITS_OF_LOWEST_PRICE

    def serves(self, columns: Sequence[PipelineColumn]) -> dict[str, float]:
        """Return what the pipelines of each pool serve, in tokens/s or requests/s."""
        rates = dict.fromkeys(self.pools, 0.0)
        for column in columns:
            rates[column.offer.pool] += column.rate
        return {pool: rate / self.pools[pool] for pool, rate in rates.items()}

    def served(self, columns: Sequence[PipelineColumn]) -> bool:
        """Return whether these pipelines serve the load."""
        return min(self.serves(columns).values()) >= self.load * (1 - 1e-12)


class Prices(NamedTuple):
    """Prices of GPUs that the rate of no pipeline exceeds, and the bound that follows.

    Attributes
    ----------
    cost : float array, shape (A,)
        Price of a GPU of each class.
    ratio : dict of str to float
        By pool, the greatest ratio of a pipeline's tokens/s to the cost of its GPUs.
    bound : float
        No deployment has more tokens/s or requests/s, or costs fewer dollars per hour.
    unit : float
        What a unit of `cost` adds to the bound.
    """

    cost: np.ndarray
    ratio: dict[str, float]
    bound: float
    unit: float

    def per_gpu(self, pool: str) -> np.ndarray:
        """Return the tokens/s that a GPU of each class must yield in a pool; shape (A,)."""
        return self.cost * self.ratio[pool]

    def profit(self, column: PipelineColumn) -> float:
        """Return how much more a pipeline yields than its GPUs cost, in units of the bound; at most 0."""
        ratio = self.ratio[column.offer.pool]
        return float(column.rate - ratio * (self.cost @ column.gpus)) / ratio * self.unit

    def as_rate(self, pool: str, value: float) -> float:
        """Convert a distance from the bound to tokens/s of a pipeline of a pool."""
        return value * self.ratio[pool] / self.unit


class RelaxedMaster(NamedTuple):
    """The optimum of the linear relaxation and its dual prices.

    Attributes
    ----------
    value : float
        Tokens/s, or dollars per hour.
    number : float array, shape (C,)
        Pipelines of each column.
    capacity : float array, shape (A,)
        Dual price of a GPU of each class: what one more would bring, at least 0.
    per_rate : dict of str to float
        Dual price of one token/s of a column by its pool: what it adds to the value, or the dollars per hour that a
        token/s of load costs.
    """

    value: float
    number: np.ndarray
    capacity: np.ndarray
    per_rate: dict[str, float]


def solve_relaxation(
    goal: DeploymentGoal, columns: Sequence[PipelineColumn]
) -> RelaxedMaster | None:
    """Solve the linear relaxation over some columns; None where a pool has none, or they do not serve the load."""
    if {column.offer.pool for column in columns} != set(goal.pools):
        return None
    unit = _unit(goal, columns)
    program = _program(goal, columns)
    # without upper bounds, which capacities imply: they would share the dual prices
    run = run_program(replace(program.relaxed(), upper=np.full(program.columns.total, np.inf)))
    if run.x is None:
        return None
    duals, value = given(run.row_duals), given(run.objective)
    classes = len(goal.counts)
    capacity, x = duals[:classes], run.x[: len(columns)]
    scale = goal.price_unit if goal.load else unit
    of_load = np.ones(1)  # where the rate itself is what is greatest
    if goal.load or len(goal.pools) > 1:
        of_load = duals[classes : classes + len(goal.pools)] * scale / unit
    per_rate = {
        pool: dual / tokens
        for (pool, tokens), dual in zip(goal.pools.items(), of_load.tolist(), strict=True)
    }
    return RelaxedMaster(
        value=abs(value) * scale, number=x, capacity=capacity * scale, per_rate=per_rate
    )


def stages_as_columns(offers: Sequence[Offer]) -> list[PipelineColumn]:
    """Make a column of every composition of a stage: that part of a pipeline which it may be.

    The optimum of the master program over these is the **work bound**. Proof: let the stages of a pipeline of rate r
    hold l₁ + l₂ + … = M layers. None is slower than r, so the product of its layers and its rate is at least l·r, and
    at most R_c, the greatest such product of a stage of its composition c. Hence r ≤ Σ R_c / M over its stages, which
    have the GPUs of the pipeline: whatever a deployment yields, the program yields with its stages.

    Mixed stages may be left out of a table where stages of as many GPUs of one of their types are no slower. At any
    dual prices the price of a mixed stage is a mean of the prices of these, so the bound is the same.
    """
    return [
        PipelineColumn(rate=work, gpus=tuple(gpus), offer=offer, stages=())
        for offer in offers
        for work, gpus in zip(offer.work.tolist(), offer.table.composition.tolist(), strict=True)
        if work > 0
    ]


def solve_whole_program(
    goal: DeploymentGoal, columns: Sequence[PipelineColumn], deadline: Deadline
) -> SolverRun:
    """Solve the whole program over some columns; its x begins with the number of each."""
    return run_program(_program(goal, columns), deadline=deadline)


def _unit(goal: DeploymentGoal, columns: Sequence[PipelineColumn]) -> float:
    """Return the rate that rates are counted in, so that a solver's tolerance is a share of it."""
    return goal.load or max(c.rate / goal.pools[c.offer.pool] for c in columns)


def _program(goal: DeploymentGoal, columns: Sequence[PipelineColumn]) -> LinearProgram:
    """Write the master program over some columns, in whole numbers."""
    number, unit = len(columns), _unit(goal, columns)
    used = np.array([c.gpus for c in columns], dtype=float).T
    rate = np.array([c.rate / goal.pools[c.offer.pool] for c in columns]) / unit
    least = len(goal.pools) > 1 and not goal.load  # `v`: of the pool that serves least
    names = VariableGroups({"x": number, "v": int(least)})
    blocks = {"class_capacity": names.rows({"x": sp.csr_array(used)}, upper=goal.counts)}
    if goal.load or least:
        in_pool = np.array([[c.offer.pool == pool for c in columns] for pool in goal.pools])
        terms = {"x": sp.csr_array(in_pool * rate)}
        if least:
            terms["v"] = sp.csr_array(-np.ones((len(in_pool), 1)))
        blocks["load"] = names.rows(terms, lower=0.0 if least else 1.0)
    if goal.budget < np.inf:
        limit, dearest = row_limit(goal.price.tolist(), goal.budget), goal.price.max()
        cost = goal.price @ used / max(limit, dearest)
        most = limit / max(limit, dearest)
        blocks["budget"] = names.rows({"x": sp.csr_array(cost[None])}, upper=most)
    for i, (price, number_of) in enumerate(goal.most_of.items()):
        priced_so = 1.0 * (goal.price == price) @ used
        blocks[f"most_of_{i}"] = names.rows({"x": sp.csr_array(priced_so[None])}, upper=number_of)
    most = np.where(used > 0, goal.counts[:, None] // np.maximum(used, 1), np.inf).min(axis=0)
    objective = {"x": -(goal.price @ used) / goal.price_unit if goal.load else rate}
    if least:
        objective = {"v": 1.0}
    return names.program(objective, blocks, upper={"x": most}, integer=["x"])
