"""A proof by dual prices: how many layers is a GPU good for at a given rate?

Give every GPU of kind k a price u_k ≥ 0 and every layer l a value y_l such that no stage that
reaches the rate holds layers of more value than its GPUs cost:

    Σ_(l in stage) y_l ≤ Σ_(g in stage) u_(kind of g)      for every stage that reaches the rate.

A placement that reaches it holds every layer once and uses no GPU twice, so the value of all layers
together is at most what all GPUs cost. If the GPUs cost less, Σ_k N_k u_k < Σ_l y_l, no placement reaches
the rate (Farkas' lemma). Anyone can check it by hand, stage by stage. Usually every layer has the
value 1, and u_k is the number of layers that a GPU of kind k is good for; if the last stage also has
the model's head, the last layer's value is higher.

The best prices are the dual solution of the linear relaxation of the counting program, links aside.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.instance import Instance
from pipelab.engine.layer_runs import Spans, runs_of
from pipelab.engine.reach import Reach
from pipelab.engine.solvers import highs
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, incidence

# stages in the linear program; above, layers that differ are not priced one by one
_MOST_ROWS = 20_000
# Denominators to try, the simplest first: a solver's decimals mostly approximate simple fractions.
_DENOMINATORS = (12, 1000, 10**6)


class DualPrices(NamedTuple):
    """Prices of one GPU of each of the cluster's kinds, and values of each layer, shape (M,), both in layers; exact."""

    gpus: tuple[Fraction, ...]
    layers: tuple[Fraction, ...]


class _Stages(NamedTuple):
    """Stages that reach the rate, as rows: what they draw, and how often each kind of layer is in them."""

    draws: list[list[tuple[int, np.ndarray]]]  # (GPUs, kinds that they may be of)
    holds: np.ndarray  # of each kind of layer; shape (rows, V)
    layers: np.ndarray  # which kind of layer each layer is; shape (M,)


def dual_prices(instance: Instance, threshold: float) -> DualPrices:
    """Dual prices of layers and GPUs, the GPUs' as low as possible in total; most layers count as 1.

    Values are at least 0 if that is enough for a proof, and may be of any sign otherwise: a stage
    with more layers may be possible where one with fewer is not.
    """
    stages = _stages_at(instance, threshold)
    found = _priced(instance, stages, signed=False)
    if not _proves(instance, found):
        signed = _priced(instance, stages, signed=True)
        found = signed if _proves(instance, signed) else found
    return DualPrices(tuple(found.gpus[k] for k in instance.type_of_kind), found.layers)


def _proves(instance: Instance, prices: DualPrices) -> bool:
    cost = sum(n * u for n, u in zip(instance.count.tolist(), prices.gpus, strict=True))
    return cost < sum(prices.layers)


def _stages_at(instance: Instance, threshold: float) -> _Stages:
    """What reaches the rate; of runs of identical layers only the longest, which decides."""
    model = instance.problem.model
    groups, spans_of_kind = _positions(model.layers, runs_of(model))
    draws, holds = [], []
    reach = Reach(instance, threshold)
    for parts, seconds in reach.choices + reach.in_nodes_by_type:
        spans = np.flatnonzero(np.isfinite(seconds)).tolist()
        kept = np.unique(np.concatenate([spans_of_kind[s] for s in spans]), axis=0)
        if groups.max() == 0:
            kept = kept[[kept.sum(axis=1).argmax()]]
        draws += [parts] * len(kept)
        holds += list(kept)
    return _Stages(draws, np.array(holds, dtype=int).reshape(len(draws), groups.max() + 1), groups)


def _positions(layers: int, spans: Spans) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The kind of every layer; and, for every kind of span, how many layers of each kind its stages hold."""
    if spans.uniform:
        group = np.zeros(layers, dtype=int)
        return group, {n - 1: np.array([[n]]) for n in range(1, layers + 1)}
    inside = spans.alike_inside and layers > 2
    few = layers * (layers + 1) // 2 <= _MOST_ROWS
    if inside:
        group = np.array([0, *[1] * (layers - 2), 2])
    else:  # every layer on its own, or all together where that would be too much
        group = np.arange(layers) if few else np.zeros(layers, dtype=int)
    held: dict[int, set] = {}
    for first in range(layers):
        for number in range(1, layers - first + 1):
            row = np.bincount(group[first : first + number], minlength=group.max() + 1)
            held.setdefault(int(spans.kind[first, number - 1]), set()).add(tuple(row.tolist()))
    return group, {kind: np.array(sorted(rows)) for kind, rows in held.items()}


def _priced(instance: Instance, stages: _Stages, signed: bool) -> DualPrices:
    """The linear program and its answer, rounded so that it holds exactly."""
    kinds, number = len(instance.types), np.bincount(stages.layers)  # of layers of each kind
    prices, values = np.zeros(kinds), np.ones(len(number))
    draws = [(i, n, own) for i, parts in enumerate(stages.draws) for n, own in parts]
    if not draws or len(draws) > _MOST_ROWS:
        return _rounded(prices, values, stages)
    stage, gpus, possible = map(np.array, zip(*draws, strict=True))
    # Columns: the price u of each kind, the value y of each kind of layer, and the lowest price of
    # the kinds that each draw may take.
    columns = Columns({"u": kinds, "y": len(number), "draw": len(draws)})
    draw, kind = np.nonzero(possible)
    each_draw, each_kind = (sp.eye_array(n, format="csr") for n in (len(draws), kinds))
    cost = incidence(stage, len(stages.draws)) * gpus
    blocks = {
        "lowest": columns.rows({"draw": each_draw[draw], "u": -each_kind[kind]}, upper=0),
        "enough": columns.rows({"y": stages.holds, "draw": -cost}, upper=0),
        "average": columns.rows({"y": number[None]}, number.sum(), number.sum()),
    }
    at, lower, objective = columns.slices, *np.zeros((2, columns.total))
    lower[at["y"]], objective[at["u"]] = -np.inf if signed else 0, -instance.count
    run = highs.run(
        LinearProgram(
            columns,
            lower,
            np.full(columns.total, np.inf),
            np.zeros(columns.total, dtype=bool),
            objective,
            blocks,
        )
    )
    if run.x is not None:
        prices, values = run.x[at["u"]], run.x[at["y"]]
    return _rounded(prices, values, stages)


def _rounded(prices: np.ndarray, values: np.ndarray, stages: _Stages) -> DualPrices:
    """The fractions that a solver's decimals approximate; if no simple ones hold, prices are raised until they do."""
    for most in _DENOMINATORS:
        exact = tuple(Fraction(v).limit_denominator(most) for v in values)
        simple = tuple(Fraction(max(0.0, u)).limit_denominator(most) for u in prices)
        if _missing(simple, exact, stages) == 0:
            return _of_layers(simple, exact, stages)
    # every stage has a GPU at least
    raised = tuple(u + _missing(simple, exact, stages) for u in simple)
    return _of_layers(raised, exact, stages)


def _of_layers(
    prices: tuple[Fraction, ...], values: tuple[Fraction, ...], stages: _Stages
) -> DualPrices:
    """With the value of most layers as the unit."""
    layers = [values[v] for v in stages.layers.tolist()]
    common = max(set(layers), key=layers.count)
    unit = common if common > 0 else Fraction(1)
    return DualPrices(tuple(u / unit for u in prices), tuple(v / unit for v in layers))


def _missing(
    prices: tuple[Fraction, ...], values: tuple[Fraction, ...], stages: _Stages
) -> Fraction:
    """The most by which the dual prices of a stage's layers exceed those of its GPUs; exact, at least 0."""
    most = Fraction(0)
    for parts, held in zip(stages.draws, stages.holds.tolist(), strict=True):
        cost = sum(
            (n * min(prices[k] for k in np.flatnonzero(own)) for n, own in parts), Fraction(0)
        )
        value = sum((n * v for n, v in zip(held, values, strict=True)), Fraction(0))
        most = max(most, value - cost)
    return most
