"""Certificates: right on random problems, checked without a solver, and false ones are found out."""

import dataclasses
from fractions import Fraction

import pytest

import oracle
import pipelab as pl
import roofline_oracle
from pipelab.engine.instance import instance_of
from pipelab.engine.methods import certificates
from pipelab.engine.methods.certificates import most_held, stages_of


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


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
def test_certificates_where_every_layer_differs(seed):
    problem = oracle.random_problem(seed, layers=5, gpus=4, unlike=True)
    proof = pl.certificate(pl.solve(problem, "aggregated"))
    assert proof.check() > 0


@pytest.mark.slow
def test_the_flagship_is_refuted_by_the_head():
    """80 layers, and GPUs for 80; but the last stage has the model's head, too."""
    cluster, model = pl.load_cluster("helix-single24"), pl.load_model("Llama-3-70B")
    problem = pl.Problem(cluster, model, pl.Workload(2048, 16, "decode"), pl.Roofline())
    with pytest.raises(pl.errors.NotApplicable, match="objective='rate'"):
        pl.certificate(pl.solve(problem))
    proof = pl.certificate(pl.solve(problem, "aggregated", "rate"))
    assert (proof.by, proof.total_price, proof.total_value) == ("dual prices", 80, 81)
    assert proof.values == (*(Fraction(1),) * 79, Fraction(2))
    assert proof.check() > 1000
    assert "layer 80 counts as 2" in str(proof)
    cheap = dataclasses.replace(proof, values=(*(Fraction(1),) * 78, Fraction(2), Fraction(2)))
    with pytest.raises(pl.PipelabError, match="contradict the certificate"):
        cheap.check()


def test_false_certificates_are_found_out():
    tiny = pl.certificate(pl.solve(pl.load_case("tiny", max_gpus_per_stage=2)))
    close = dataclasses.replace(tiny, throughput=tiny.throughput * (1 - 5e-10))
    with pytest.raises(pl.PipelabError, match="the next higher rate is 301"):
        close.check()
    medium = pl.certificate(pl.solve(pl.load_case("medium", max_gpus_per_stage=2)))
    with pytest.raises(
        pl.PipelabError, match="stages hold 77 of 80 layers there, so this is no proof"
    ):
        dataclasses.replace(medium, most_layers=1).check()
    rates = instance_of(medium.problem).thresholds
    below, reached = rates[rates < medium.rate][-2:].tolist()
    boast = dataclasses.replace(medium, throughput=below, rate=reached, most_layers=80)
    with pytest.raises(pl.PipelabError, match="stages hold 80 of 80 layers"):
        boast.check()
    single = pl.certificate(pl.solve(pl.load_case("medium")))
    negative = tuple(u if u else Fraction(-1) for u in single.prices)
    with pytest.raises(pl.PipelabError, match="a price below 0"):
        dataclasses.replace(single, prices=negative).check()


def test_a_proof_of_too_many_cases_is_refused(monkeypatch):
    result = pl.solve(pl.load_case("medium", max_gpus_per_stage=2), "aggregated")
    proof = pl.certificate(result)
    monkeypatch.setattr(certificates, "_MOST_STEPS", 10)
    for asked in (proof.check, lambda: pl.certificate(result)):
        with pytest.raises(
            pl.errors.TooLarge, match="a proof without a solver would look at more than"
        ):
            asked()


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(12))
def test_cases_of_one_rate_do_not_prove_another(seed):
    """The cases of a proof belong to its rate: at the rate that is reached they prove nothing."""
    problem = roofline_oracle.random_problem(seed, layers=6, gpus=4)
    result = pl.solve(problem, "aggregated")
    proof = pl.certificate(result)
    if proof.rate is None or result.throughput is None:
        return
    with pytest.raises(pl.PipelabError, match="no proof"):
        dataclasses.replace(proof, rate=result.throughput).check()
