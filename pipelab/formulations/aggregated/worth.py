"""A proof that fits on a card: how many layers is a GPU worth at a given rate?

Give every GPU of kind k a worth of w_k layers such that no stage that reaches the rate holds
more layers than its GPUs are worth together. Then no placement holds more layers than all GPUs
are worth; if that is less than the model has, no placement reaches the rate. Anyone can check
it with a pencil, stage by stage.

The best such worths are the dual solution of the linear relaxation of the counting program,
links aside: minimise Σ N_k w_k.
"""

from fractions import Fraction
from typing import Any

import numpy as np

from pipelab.formulations.aggregated.rates import StageRates
from pipelab.formulations.aggregated.recipes import patterns_at

__all__ = ["worths"]


def worths(rates: StageRates, threshold: float) -> tuple[Fraction, ...]:
    """Worth of one GPU of each kind in layers, as exact fractions; shape (K,).

    Never too small for any stage that reaches `threshold`; as small as possible in total, but
    for rounding.
    """
    from scipy.optimize import linprog

    there, sizes = rates.problem.cluster.kind_count, rates.problem.model.spans.layers
    kinds = len(there)
    patterns = [(parts, int(sizes[spans].max())) for parts, spans in patterns_at(rates, threshold)]
    draws = [(i, number, np.flatnonzero(own)) for i, (parts, _) in enumerate(patterns) for number, own in parts]
    if not patterns:
        return (Fraction(0),) * kinds
    # Columns: w_k, then one per draw: the least worth of the kinds it may take.
    below = np.array([(kinds + d, k) for d, (_, _, own) in enumerate(draws) for k in own])
    least = np.zeros((len(below), kinds + len(draws)))
    least[np.arange(len(below)), below[:, 0]], least[np.arange(len(below)), below[:, 1]] = 1, -1
    enough = np.zeros((len(patterns), kinds + len(draws)))
    for d, (i, number, _) in enumerate(draws):
        enough[i, kinds + d] = -number
    needed = np.array([layers for _, layers in patterns], dtype=float)
    answer = linprog(
        np.concatenate([there, np.zeros(len(draws))]), method="highs-ds",
        A_ub=np.vstack([least, enough]), b_ub=np.concatenate([np.zeros(len(below)), -needed]),
    )  # fmt: skip
    return _rounded_safely(answer.x[:kinds], patterns)


def _rounded_safely(values: np.ndarray, patterns: Any) -> tuple[Fraction, ...]:
    """The fractions that the solver's decimals stand for; where one is too small, rounded up instead."""
    simple = tuple(Fraction(max(0.0, v)).limit_denominator(1000) for v in values)
    if _hold(simple, patterns):
        return simple
    upward = tuple(Fraction(int(np.ceil(max(0.0, v) * 1_000_000 * (1 + 1e-9))) + 1, 1_000_000) for v in values)
    return upward


def _hold(worth: tuple[Fraction, ...], patterns: Any) -> bool:
    """Whether no pattern holds more layers than its GPUs are worth, in exact arithmetic."""
    return all(
        sum(number * min(worth[k] for k in np.flatnonzero(own)) for number, own in parts) >= layers
        for parts, layers in patterns
    )
