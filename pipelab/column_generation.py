"""One pipeline or several, by column generation: master program, dual prices, pricing problem.

A pipeline is a placement at work: a copy of the model on some of the GPUs. Pipelines share no GPU and do
not talk to each other, so their rates add up. A *column* is a pipeline that is known, of rate r_c on n_ck
GPUs of kind k. With x_c pipelines of column c the **master program** is::

    max Σ r_c x_c        Σ_c n_ck x_c ≤ N_k for every kind k,   x_c ≥ 0

Its dual prices π_k say what one more GPU of each kind would bring. A pipeline that yields more than its
GPUs cost at these prices improves the program. The **pricing problem** asks for the one with the greatest
r - Σ π_k n_k: at each possible rate an integer program counts the stages of least price (`counting`). If
none yields more than it costs, no pipeline can improve the program, and its optimum bounds every
deployment. The same program in whole numbers, over the columns that are known, is a deployment
(P. C. Gilmore and R. E. Gomory, 1961).

Domain: that of `counting`, inner layers that are identical and links that do not bind, with memory for
as many microbatches in flight as each pipeline needs for its rate.

This is a definition to read. `pl.deploy` runs `engine/deployments/column_generation.py` instead, which
prices all rates at once, takes any cluster, and lists what could close the gap to the bound;
`tests/engine/test_deployments.py` holds it between this module's deployment and bound.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp

from pipelab.counting import (
    Piece,
    Place,
    Rates,
    different_rates,
    fewest_stages,
    place_stages,
    rates_by_place,
)
from pipelab.errors import NotApplicable
from pipelab.evaluation import evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem

__all__ = ["DeploymentAndBound", "KnownPipeline", "best_pipeline", "deploy_by_column_generation"]

NOTHING_MORE = 1e-7  # of a column's rate: the solvers' arithmetic


class KnownPipeline(NamedTuple):
    """A column of the master program: a pipeline's rate in tokens/s, its GPUs of each kind, and its stages."""

    rate: float
    gpus: tuple[int, ...]
    stages: list[Piece]


class DeploymentAndBound(NamedTuple):
    """What column generation finds, and what no deployment exceeds.

    Attributes
    ----------
    placements : list of Placement
        One for each pipeline, on GPUs of its own; empty if no pipeline fits.
    throughput : float
        Of all of them, in tokens/s.
    bound : float
        No deployment has more, in tokens/s: the optimum of the master program.
    columns : list of KnownPipeline
        In the order in which they were generated.
    """

    placements: list[Placement]
    throughput: float
    bound: float
    columns: list[KnownPipeline]


def deploy_by_column_generation(problem: Problem) -> DeploymentAndBound:
    """Find pipelines of great throughput together, and a bound on that of every deployment.

    Parameters
    ----------
    problem : Problem
        With inner layers that are identical, and links that do not bind.

    Returns
    -------
    DeploymentAndBound
        Pipelines on disjoint GPUs, and the bound. They are the best if both are equal.

    Raises
    ------
    NotApplicable
        Inner layers differ, or a pipeline found does not attain the rate of its stages.
    TooLarge
        There are too many rates of stages.

    Examples
    --------
    >>> import pipelab as pl
    >>> from dataclasses import replace
    >>> gpus = pl.Cluster.from_counts({"A100": 1, "T4": 2}, {"A100": 40, "T4": 16}, 12.5)
    >>> tiny = replace(pl.load_case("tiny"), cluster=gpus)
    >>> answer = deploy_by_column_generation(tiny)
    >>> len(answer.placements), round(answer.throughput, 2), round(answer.bound, 2)
    (3, 351.44, 351.44)
    """
    rates = rates_by_place(problem)
    counts = problem.cluster.kind_count
    columns: list[KnownPipeline] = []
    prices, bound = np.zeros(len(counts)), 0.0
    while True:
        column = best_pipeline(problem, rates, prices)
        if column is None or column.rate - prices @ column.gpus <= NOTHING_MORE * column.rate:
            break
        columns.append(column)
        master = linprog([-c.rate for c in columns], _gpus(columns), counts)
        bound, prices = -master.fun, -master.ineqlin.marginals
    if not columns:
        return DeploymentAndBound(placements=[], throughput=0.0, bound=0.0, columns=[])
    whole = milp(
        [-c.rate for c in columns],
        constraints=LinearConstraint(_gpus(columns), ub=counts),
        integrality=np.ones(len(columns)),
        options={"mip_rel_gap": 0},
    )
    number = np.rint(whole.x).astype(int)
    chosen = [c for c, times in zip(columns, number, strict=True) for _ in range(times)]
    placements = place_stages(problem, [column.stages for column in chosen])
    _refuse_less_than_counted(problem, chosen, placements)
    return DeploymentAndBound(
        placements=placements,
        throughput=sum(column.rate for column in chosen),
        bound=bound,
        columns=columns,
    )


def best_pipeline(
    problem: Problem, rates: dict[Place, Rates], prices: np.ndarray
) -> KnownPipeline | None:
    """Solve the pricing problem: the pipeline that yields most beyond the price of its GPUs.

    Parameters
    ----------
    problem : Problem
        With inner layers that are identical, and links that do not bind.
    rates : dict of place to dict of mix to list of float
        Of `counting.rates_by_place`.
    prices : float array, shape (K,)
        Of a GPU of each kind, in tokens/s, at least 0.

    Returns
    -------
    KnownPipeline or None
        None if none fits that yields more than its GPUs cost.
    """
    best, most, paid = None, 0.0, 0.0
    for rate in different_rates(rates):
        # A faster pipeline pays no less than the cheapest of a lower rate, so this one cannot yield more.
        if rate - paid <= most:
            continue
        stages = fewest_stages(problem, rates, rate, prices.tolist())
        if stages is None:  # nor is any pipeline faster
            break
        gpus = np.bincount([k for stage in stages for k in stage.mix], minlength=len(prices))
        paid = float(prices @ gpus)
        if rate - paid > most:
            best = KnownPipeline(rate=float(rate), gpus=tuple(gpus.tolist()), stages=stages)
            most = rate - paid
    return best


def _gpus(columns: Sequence[KnownPipeline]) -> np.ndarray:
    """Count the GPUs of each kind (rows) in each column."""
    return np.array([column.gpus for column in columns]).T


def _refuse_less_than_counted(
    problem: Problem, columns: Sequence[KnownPipeline], placements: Sequence[Placement]
) -> None:
    for column, placement in zip(columns, placements, strict=True):
        attained = evaluate(problem, placement).attainable
        if attained < column.rate * (1 - 1e-9):
            expected = "expected links that do not bind, and memory for all in flight"
            reached = f"stages of {column.rate:g} tokens/s attain {attained:g}"
            what = [("problem", problem.name, f"{expected} ({reached}; pl.deploy takes these)")]
            raise NotApplicable("column generation", what)
