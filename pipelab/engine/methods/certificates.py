"""From a proven result to its certificate: dual prices first, then whole stages, links or positions, in cases."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from pipelab.engine.duals import dual_prices
from pipelab.engine.formulations.refutation import refute
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.methods.proof import Certificate, programs_of, walks_of
from pipelab.engine.nodes import rates_by_nodes
from pipelab.engine.rates import StageRates, index_of_rate
from pipelab.engine.recipes import patterns_at
from pipelab.engine.search import Search, Subproblems
from pipelab.engine.walk import Circuit, Walk
from pipelab.errors import InvalidValue, NotApplicable, PipelabError, TooLarge
from pipelab.fields import given
from pipelab.solving import Result


def certificate(result: Result) -> Certificate:
    """Why nothing is faster: the next higher rate, and what is missing there.

    Parameters
    ----------
    result : Result
        Proven optimal or infeasible, by any method.

    Returns
    -------
    Certificate
        `sentence` is the proof in words; `rate`, in tokens/s, the next higher one; `prices` how
        many layers a GPU of each kind is good for there. `check()` checks it.

    Raises
    ------
    NotApplicable
        Memory keeps the placement from the greatest rate: this proof is of rates.
    InvalidValue
        The result is not proven, holds under a limit only, or is of something else than throughput:
        there is nothing to certify.
    PipelabError
        A placement of that rate exists after all: the result is wrong.
    TooLarge
        Too many mixtures of too many kinds of GPU would have to be listed.

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("medium", max_gpus_per_stage=2), "aggregated")
    >>> proof = pl.certificate(result)
    >>> proof.left_over, proof.by
    (3, 'whole stages')
    """
    if not isinstance(result, Result) or result.status not in ("optimal", "infeasible"):
        status = getattr(result, "status", result)
        raise InvalidValue(
            "certificate", [("result", status, "expected a result that is optimal or infeasible")]
        )
    if "under_limit" in result.details:
        expected = f"expected a result without limits; this is {result.reason}"
        raise InvalidValue("certificate", [("result", result.throughput, expected)])
    if result.objective is not None:
        expected = f"expected a result for the greatest throughput; this one has the least {result.objective.unit}"
        raise InvalidValue("certificate", [("result", result.throughput, expected)])
    problem, rates = result.problem, rates_by_nodes(result.problem)
    nothing = (Fraction(0),) * len(problem.cluster.kinds)
    ones = (Fraction(1),) * problem.model.layers
    if not len(rates.thresholds):
        return Certificate(problem, None, None, "no stage", nothing, ones, 0)
    reached = (
        -1 if result.throughput is None else index_of_rate(rates.thresholds, result.throughput)
    )
    if reached + 1 == len(rates.thresholds):
        return Certificate(problem, result.throughput, None, "no faster stage", nothing, ones, None)
    rate = float(rates.thresholds[reached + 1])
    prices, values = dual_prices(rates, rate)
    proof = Certificate(
        problem, result.throughput, rate, "dual prices", prices, values, None, _idle(rates, rate)
    )
    if proof.total_price < proof.total_value:
        plain = all(v == 1 for v in values)
        return replace(proof, most_layers=math.floor(proof.total_price)) if plain else proof
    if not runs_of(problem.model).alike_inside:
        return _with_cases(_without_a_path(proof, rates), rates)
    # Each step may leave out less; where mixtures are too many to list, the last one proves
    # nothing.
    for by in ("whole stages", "links"):
        walks = walks_of(rates, rate, by)
        held, circuits = zip(*map(most_layers, walks), strict=True)
        if max(held) < problem.model.layers:
            if any(walk.stages.links.narrowed for walk in walks):
                raise TooLarge(
                    "a proof would have to list too many mixtures of classes",
                    {"classes": len(rates.classes)},
                )
            found = replace(proof, by=by, most_layers=max(held), circuits=circuits)
            return _with_cases(found, rates)
    if result.memory_for is None and "rounds" in result.details:
        own, number = given(result.evaluation), result.in_flight
        expected = (
            f"expected one that attains the greatest rate, as this proof is of rates: memory holds {number} in "
            f"flight, and with so many no placement may attain its rate (this one's, {own.rate:.7g}, needs "
            f"{own.in_flight_needed}). "
            f"certificate(solve(problem.with_in_flight({number}), objective='rate')) proves which rate none exceeds"
        )
        raise NotApplicable("certificate", [("result", result.throughput, expected)])
    raise PipelabError(
        f"a placement of {rate:,.7g} tokens/s exists, so {result.throughput} is not the best"
    )


def _with_cases(proof: Certificate, rates: StageRates) -> Certificate:
    """The proof with cases that can be checked, if some were found in time."""
    programs = programs_of(rates, proof)
    trees = [refute(program) for program in programs or ()]
    cases = tuple(tree for tree in trees if tree is not None)
    return replace(proof, cases=cases) if cases and len(cases) == len(trees) else proof


def _idle(rates: StageRates, rate: float) -> tuple[int, ...]:
    """Kinds that are in no stage of that rate."""
    busy = np.zeros(len(rates.kinds), dtype=bool)
    for parts, _ in patterns_at(rates, rate) + rates.local_of_kinds(rate):
        for _, own in parts:
            busy |= own
    return tuple(np.flatnonzero(~busy[rates.price_of]).tolist())


def _without_a_path(proof: Certificate, rates: StageRates) -> Certificate:
    """Layers differ: ask the search itself whether the rate can be reached."""
    index = int(np.searchsorted(rates.thresholds, given(proof.rate)))
    reached = Search(Subproblems(rates)).reach(index)
    if reached:
        raise PipelabError(
            f"a placement of {proof.rate:,.7g} tokens/s exists, so the result is not the best"
        )
    if reached is None:
        raise TooLarge(
            "a proof would have to list too many mixtures of classes",
            {"classes": len(rates.classes)},
        )
    return replace(proof, by="position")


def most_layers(walk: Walk) -> tuple[int, tuple[Circuit, ...]]:
    """The most layers, up to all, that whole stages can hold in a pipeline; and the circuits that were forbidden."""
    held, most = 0, walk.stages.problem.model.layers
    while held < most:
        enough = (held + most + 1) // 2
        end = replace(walk, fewest=enough).solved()
        walk = replace(walk, circuits=end.walk.circuits)
        held, most = (held, enough - 1) if end.order is None else (enough, most)
    return held, walk.circuits
