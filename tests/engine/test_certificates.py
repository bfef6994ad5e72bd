"""Certificates: right on random problems, checked without a solver, and false ones are found out."""

import dataclasses
import itertools
import math
import re
from fractions import Fraction

import node_oracle
import numpy as np
import pytest

import oracle
import pipelab as pl
import roofline_oracle
from pipelab.engine.instance import instance_of
from pipelab.engine.methods import certificates
from pipelab.engine.methods.certificates import most_held, stages_of
from pipelab.engine.methods.first_placements import incumbents


@pytest.mark.parametrize("seed", range(40))
def test_stages_hold_all_layers_just_up_to_the_optimum(seed):
    """What the check finds with links is what brute force finds, at every rate."""
    problem = oracle.random_problem(seed, layers=5, gpus=4, unlike=seed % 2 > 0)
    best = max((rate for rate, _, _ in oracle.placements(problem)), default=0.0)
    for rate in instance_of(problem).thresholds.tolist():
        stages = stages_of(problem, rate)
        held, cases = most_held(problem, stages, rate, links=True)
        assert (held == problem.model.layers) == (rate <= best * (1 + 1e-9))
        assert held <= most_held(problem, stages, rate, links=False)[0] <= problem.model.layers
        assert cases > 0


VARIANTS = (
    {},
    {"twins": True},
    {"unlike": True},
    {"batch_split": "balanced"},
    {"same_type_stages": True, "twins": True},
)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(100))
def test_every_proven_answer_has_a_certificate(seed):
    problem = oracle.random_problem(seed, **VARIANTS[seed % 5])
    result = pl.solve(problem, "aggregated")
    proof = pl.certificate(result)
    assert str(proof)
    assert proof.rate is None or proof.rate > (result.throughput or 0)
    assert proof.most_layers is None or proof.most_layers < problem.model.layers
    assert proof.check() > 0


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("case", "k", "by", "left"),
    [
        ("medium", 1, "dual prices", 35),
        ("medium", 2, "whole stages", 3),
        ("medium", 3, "links", 68),
        ("demo", 3, "no faster stage", None),
    ],
)
def test_certificates_of_the_cases(case, k, by, left):
    proof = pl.certificate(pl.solve(pl.load_case(case, max_gpus_per_stage=k)))
    assert (proof.by, proof.left_over) == (by, left)
    assert proof.sentence
    assert proof.check() > 0


# Problems of certificates: layers, mixtures and links of every sort; nodes that matter; memory for a few in flight
FAMILIES = (
    lambda seed: oracle.random_problem(seed, **VARIANTS[seed // 4 % 5]),
    lambda seed: node_oracle.random_problem(seed, gpus=4, layers=4),
    lambda seed: roofline_oracle.random_problem(seed, layers=4, gpus=4),
    lambda seed: two_nodes(seed),
)


def two_nodes(seed):
    """Identical GPUs in two nodes, so that each may have a price of its own."""
    rng = np.random.default_rng(seed)
    sizes, layers = rng.integers(1, 3, 2), int(rng.integers(2, 6))
    pool = [pl.GPU("A", 2.5, 1.0, f"node {i}", 100.0) for i in (0, 1) for _ in range(sizes[i])]
    latency = np.full((len(pool), len(pool)), float(rng.choice([0.0, 30.0])))
    cluster = pl.Cluster(tuple(pool), np.full(latency.shape, 1e3), None, latency)
    model, costs = pl.Model("m", layers, 1000, 4000, 1.0), pl.LayerTimes({"A": 1.0})
    most = int(rng.integers(1, 3))
    return pl.Problem(cluster, model, pl.Workload(100, 1), costs, max_gpus_per_stage=most)


def is_dual(proof):
    """Whether no stage of any GPUs that reaches the rate holds layers of more value than they cost."""
    problem, layers = proof.problem, proof.problem.model.layers
    pool, kinds = problem.cluster.gpus, problem.cluster.kinds
    for number in range(1, min(problem.max_gpus_per_stage, len(pool)) + 1):
        for gpus in itertools.combinations(pool, number):
            if problem.same_type_stages and len({gpu.type for gpu in gpus}) > 1:
                continue
            price = sum(proof.prices[kinds.index(gpu)] for gpu in gpus)
            for first, last in itertools.combinations(range(layers + 1), 2):
                cost = problem.stage_cost(gpus, range(first, last))
                reached = cost.fits(gpus) and cost.throughput >= proof.rate * (1 - 1e-12)
                if reached and sum(proof.values[first:last]) > price:
                    return False
    return True


def wrong_parts(proof):
    """What makes any certificate of a next rate false: a part of each sort that is not as it should be."""
    kinds, rate = len(proof.prices), proof.rate
    yield from ({"rate": x} for x in (rate * 1.001, rate * (1 - 1e-9), -rate, np.nan, np.inf, None))
    for prices in (proof.prices[1:], (*proof.prices, Fraction(0)), (Fraction(-1),) * kinds):
        yield {"prices": prices}
    for odd in (np.nan, np.inf, 0.5):
        yield {"prices": (odd, *proof.prices[1:])}
        yield {"values": (odd, *proof.values[1:])}
    yield from ({"values": x} for x in (proof.values[1:], (*proof.values, Fraction(1))))
    yield {"prices": (Fraction(0),) * kinds, "most_layers": 0}
    most = 0 if proof.throughput is None else None
    for by in ("no stage", "no faster stage", "because"):
        yield {"by": by, "most_layers": most}
    yield {"most_layers": 7**5 if proof.most_layers is None else proof.most_layers + 1}
    yield {"throughput": rate}
    if proof.throughput is not None:
        yield {"rate": proof.throughput}  # whose cases prove nothing of another
        for x in (proof.throughput * (1 - 1e-9), proof.throughput * (1 + 1e-9), np.nan, None):
            yield {"throughput": x}
        yield {"placement": None}
        yield {"throughput": None, "placement": None}


def of_less(proof, rng):
    """Certificates of a slower placement, each by every sort of proof, with the best prices and with odd ones."""
    problem, instance = proof.problem, instance_of(proof.problem)
    least = (proof.throughput or 0.0) * (1 - 1e-9)
    own = problem.with_in_flight(problem.workload.in_memory)
    for placement, found in list(incumbents(own).items())[:5]:
        rate = certificates._next_rate(instance, found.rate)
        if found.rate >= least:
            continue
        for prices in (
            certificates.dual_prices(instance, rate).gpus,
            tuple(map(Fraction, rng.permutation([0, *[1] * (len(proof.prices) - 1)]).tolist())),
        ):
            for by in ("dual prices", "whole stages", "links", "position"):
                less = dataclasses.replace(
                    proof, throughput=found.rate, placement=placement, rate=rate
                )
                ones = (Fraction(1),) * problem.model.layers
                less = dataclasses.replace(less, by=by, prices=prices, values=ones)
                held = math.floor(less.total_price) if by == "dual prices" else len(ones) - 1
                yield dataclasses.replace(less, most_layers=held)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(120))
def test_no_false_certificate_passes(seed):
    rng = np.random.default_rng(seed)
    proof = pl.certificate(pl.solve(FAMILIES[seed % 4](seed), "aggregated", "rate"))
    assert proof.check() > 0
    if proof.rate is None:
        return
    false = [dataclasses.replace(proof, **parts) for parts in wrong_parts(proof)]
    false += of_less(proof, rng)
    for k, price in enumerate(proof.prices):  # of one kind alone, so nodes have prices of their own
        for less in (price / 2, price - 1, Fraction(0)):
            prices = (*proof.prices[:k], less, *proof.prices[k + 1 :])
            cheap = dataclasses.replace(proof, prices=prices)
            if less < 0 or not is_dual(cheap):
                false.append(cheap)
    dear = dataclasses.replace(proof, values=tuple(v * 10**6 for v in proof.values))
    false += [] if is_dual(dear) else [dear]
    assert is_dual(proof)
    for one in false:
        with pytest.raises(pl.PipelabError):
            one.check()


def test_a_wrong_answer_gets_no_certificate():
    result = pl.solve(pl.load_case("medium", max_gpus_per_stage=2))
    worse = dataclasses.replace(result, throughput=264.236, bound=264.236)
    with pytest.raises(pl.PipelabError, match=r"exists, so 264\.236 is not the best"):
        pl.certificate(worse)
    with pytest.raises(pl.errors.InvalidValue, match="expected a result that is optimal or infeas"):
        pl.certificate(pl.solve(pl.load_case("tiny"), "even"))
    fewer = pl.trade_off(pl.load_case("tiny", max_gpus_per_stage=4)).points[1]
    with pytest.raises(pl.errors.InvalidValue, match="of placements of at most 3 GPUs"):
        pl.certificate(fewer)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(20))
def test_a_certificate_never_rests_on_mixtures_left_out(seed, monkeypatch):
    more = {"max_gpus_per_stage": 3, "unlike": seed % 3 == 0}
    result = pl.solve(oracle.random_problem(seed, gpus=5, layers=4, **more))
    if result.status != "optimal":
        return
    rates = result.details["instance"].thresholds
    lower = float(rates[max(0, np.searchsorted(rates, result.throughput * (1 - 1e-9)) - 2)])
    monkeypatch.setattr("pipelab.engine.stages.MOST_SUPPORTS", 5)
    if lower < result.throughput * (1 - 1e-9):  # claims less than exists: must not be certified
        with pytest.raises((pl.PipelabError, pl.errors.TooLarge)):
            pl.certificate(dataclasses.replace(result, throughput=lower, bound=lower))


def test_where_memory_keeps_a_placement_from_its_rate_the_remedy_is_named():
    """No rate exceeds what it certifies; less is attained, since memory holds too few."""
    four = pl.Cluster.from_counts({"L4": 4}, 24, 1.0)
    load = pl.Workload(16_384, 8, "decode")
    problem = pl.Problem(four, pl.load_model("Llama-3-8B"), load, pl.Roofline())
    result = pl.solve(problem)
    number = result.in_flight
    remedy = f"certificate(solve(problem.with_in_flight({number}), objective='rate'))"
    with pytest.raises(pl.errors.NotApplicable, match=re.escape(remedy)):
        pl.certificate(result)


def test_a_proof_of_too_many_cases_is_refused(monkeypatch):
    proof = pl.certificate(pl.solve(pl.load_case("medium", max_gpus_per_stage=2)))
    monkeypatch.setattr(certificates, "_MOST_CASE_STEPS", 10)
    with pytest.raises(
        pl.errors.TooLarge, match="a proof without a solver would look at more than"
    ):
        proof.check()
