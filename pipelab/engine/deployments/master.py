"""The master program: how many pipelines of each column, within the GPUs of each class.

With column c of rate r_c that uses n_ca GPUs of class a, and x_c pipelines of it:

    most throughput    max Σ r_c x_c                  Σ n_ca x_c ≤ N_a
    least price        min Σ (q · n_c) x_c            Σ n_ca x_c ≤ N_a,  Σ r_c x_c ≥ load

Its linear relaxation has dual prices; the whole program chooses among the columns that are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.deadline import Deadline
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock
from pipelab.engine.solvers.solver_run import SolverRun


@dataclass(frozen=True)
class Column:
    """A pipeline as the master program sees it.

    Attributes
    ----------
    rate : float
        In tokens/s.
    gpus : tuple of int
        Of each class.
    offer : int
        Which of the offers (workloads) it is for.
    index : int
        The number of its rate in that offer's table; -1 where `stages` are known.
    stages : tuple of (int, tuple of int)
        Layers and GPUs by class of each stage, where these are known.
    """

    rate: float
    gpus: tuple[int, ...]
    offer: int = 0
    index: int = -1
    stages: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, eq=False)
class Demand:
    """What a deployment is to be best at.

    Attributes
    ----------
    counts : int array, shape (A,)
        GPUs of each class.
    load : float
        Tokens/s to be served at the least price; 0: as many as possible, whatever the price.
    price : float array, shape (A,)
        Dollars per hour of a GPU of each class; read with a load only.
    """

    counts: np.ndarray
    load: float
    price: np.ndarray

    def value(self, columns: Sequence[Column]) -> float:
        """Tokens/s, or dollars per hour, of these pipelines."""
        if not self.load:
            return float(sum(c.rate for c in columns))
        return float(sum(self.price @ np.array(c.gpus) for c in columns))

    def served(self, columns: Sequence[Column]) -> bool:
        """Whether these pipelines serve the load."""
        return sum(c.rate for c in columns) >= self.load * (1 - 1e-12)


class Relaxed(NamedTuple):
    """The optimum of the linear relaxation.

    Attributes
    ----------
    value : float
        Tokens/s, or dollars per hour.
    number : float array, shape (C,)
    capacity : float array, shape (A,)
        What one GPU more of each class would bring, at least 0.
    per_rate : float
        Dual price of one token/s of a column: 1, or the dollars per hour that a token/s of load costs.
    """

    value: float
    number: np.ndarray
    capacity: np.ndarray
    per_rate: float


def relaxed(demand: Demand, columns: Sequence[Column]) -> Relaxed | None:
    """The linear relaxation over some columns; None where they do not serve the load."""
    from scipy.optimize import linprog

    used = np.array([c.gpus for c in columns], dtype=float).T
    rate = np.array([c.rate for c in columns])
    unit = demand.load or rate.max()  # what is tiny or huge counts as nothing, or as infinite
    if not demand.load:
        found = linprog(-rate / unit, A_ub=used, b_ub=demand.counts, method="highs")
        duals = np.maximum(0.0, -found.ineqlin.marginals)
        return Relaxed(-found.fun * unit, found.x, duals * unit, 1.0)
    found = linprog(
        demand.price @ used,
        A_ub=np.vstack([used, -rate / unit]),
        b_ub=np.append(demand.counts, -1.0),
        method="highs",
    )
    if found.x is None:
        return None
    duals = np.maximum(0.0, -found.ineqlin.marginals)
    return Relaxed(found.fun, found.x, duals[:-1], float(duals[-1]) / unit)


def whole(
    demand: Demand,
    columns: Sequence[Column],
    deadline: Deadline,
    gap: float = 0.0,
) -> SolverRun:
    """The whole program over some columns."""
    number = len(columns)
    used = np.array([c.gpus for c in columns], dtype=float).T.reshape(-1, number)
    rate = np.array([c.rate for c in columns])
    names = Columns({"x": number})
    capacity = names.rows({"x": sp.csr_array(used)}, upper=0.0)
    capacity.upper[:] = demand.counts
    blocks: dict[str, RowBlock] = {"class_capacity": capacity}
    unit = demand.load or rate.max()  # so that a solver's tolerance is a share of it
    if demand.load:
        blocks["load"] = names.rows({"x": sp.csr_array(rate[None] / unit)}, lower=1.0)
    with np.errstate(divide="ignore"):
        most = np.where(used > 0, demand.counts[:, None] // np.maximum(used, 1), np.inf).min(axis=0)
    objective = -(demand.price @ used) if demand.load else rate / unit
    program = LinearProgram(
        names, np.zeros(number), most, np.ones(number, dtype=bool), objective, blocks
    )
    return run_program(program, deadline=deadline, gap=gap)


def repeated(columns: Sequence[Column], number: np.ndarray) -> list[Column]:
    """Each column as often as it is chosen."""
    times = np.rint(number).astype(int).tolist()
    return [column for column, n in zip(columns, times, strict=True) for _ in range(n)]


def filled_up(demand: Demand, columns: Sequence[Column], number: np.ndarray) -> list[Column]:
    """Whole numbers from the relaxation's: rounded down, then whatever still fits, the best first.

    With a load, pipelines that it does not need are dropped again, the dearest first.
    """
    chosen = repeated(columns, np.floor(number + 1e-9))
    used = np.array([c.gpus for c in columns], dtype=int)
    rate = np.array([c.rate for c in columns])
    left = demand.counts - sum((np.array(c.gpus) for c in chosen), np.zeros_like(demand.counts))
    while True:
        fits = np.flatnonzero((used <= left).all(axis=1))
        if not len(fits) or (demand.load and demand.served(chosen)):
            break
        best = fits[rate[fits].argmax()]
        chosen.append(columns[best])
        left = left - used[best]
    if demand.load:
        for column in sorted(chosen, key=lambda c: demand.value([c]), reverse=True):
            rest = list(chosen)
            rest.remove(column)
            if demand.served(rest):
                chosen = rest
    return chosen
