"""Cases that refute a program: right on random programs, and a tree that was tampered with is found out."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import oracle
import pipelab as pl
import roofline_oracle
from pipelab.engine.instance import instance_of
from pipelab.engine.methods import certificates, refutation
from pipelab.engine.methods.refutation import Branch, Leaf, check_refutation, refute
from pipelab.engine.reach import Reach
from pipelab.engine.search import walks
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock


def program(seed):
    """Four whole columns and a continuous one, three rows with small whole entries."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-3, 6, (3, 5)).astype(float)
    lower = rng.choice([-np.inf, 3, 7, 11], 3).astype(float)
    upper = np.where(np.isfinite(lower) & (rng.random(3) < 0.5), lower, lower + 1)
    upper = np.where(np.isfinite(lower), upper, rng.integers(0, 9, 3))
    columns = Columns({"n": 4, "y": 1})
    rows = RowBlock(sp.csr_array(matrix), lower, upper)
    bounds = rng.integers(1, 4, 5).astype(float)
    whole = np.array([True] * 4 + [False])
    return LinearProgram(columns, np.zeros(5), bounds, whole, np.zeros(5), {"rows": rows})


def solvable(p):
    """Whether there is a solution, by trying all whole parts; what is left for the last column is an interval."""
    rows = p.blocks["rows"]
    matrix = rows.matrix.toarray()
    for x in itertools.product(*(range(int(u) + 1) for u in p.upper[:4])):
        fixed, low, high = matrix[:, :4] @ x, 0.0, p.upper[4]
        for a, f, lower, upper in zip(matrix[:, 4], fixed, rows.lower, rows.upper, strict=True):
            if a == 0 and not lower <= f <= upper:
                low, high = 1.0, 0.0
            elif a:
                ends = sorted(((lower - f) / a, (upper - f) / a))
                low, high = max(low, ends[0]), min(high, ends[1])
        if low <= high:
            return True
    return False


def test_a_refutation_is_found_just_where_there_is_no_solution():
    refuted = 0
    for seed in range(200):
        p = program(seed)
        tree = refute(p)
        assert (tree is None) == solvable(p)
        if tree is not None:
            assert check_refutation(p, tree) > 0
            refuted += isinstance(tree, Branch)
    assert refuted > 10  # in cases, not by weights at once


def first_split():
    return next(
        (p, t)
        for p, t in ((program(s), refute(program(s))) for s in range(400))
        if isinstance(t, Branch)
    )


def test_a_tree_that_was_tampered_with_proves_nothing():
    p, tree = first_split()
    leaf = tree.below if isinstance(tree.below, Leaf) else tree.above
    assert isinstance(leaf, Leaf)
    side = "below" if leaf is tree.below else "above"
    for weights in (
        (),
        tuple((r, -w) for r, w in leaf.weights),
        tuple((r, w * 0) for r, w in leaf.weights),
        tuple((r, w + 0.5) for r, w in leaf.weights),  # not whole: sums would not be exact
        tuple((r, w * 2**60) for r, w in leaf.weights),  # nor of numbers as large
    ):
        assert check_refutation(p, dataclasses.replace(tree, **{side: Leaf(weights)})) == 0
    gap = dataclasses.replace(tree, at=tree.at + 5)
    assert check_refutation(p, gap) == 0  # what lies between is not refuted
    half = dataclasses.replace(tree, columns=(4,))  # a column that need not be whole
    assert check_refutation(p, half) == 0


def test_a_refutation_does_not_fit_another_program():
    tree = next(t for t in (refute(program(s)) for s in range(400)) if t is not None)
    fitting = [s for s in range(400) if solvable(program(s))]
    assert not any(check_refutation(program(s), tree) for s in fitting[:100])


@pytest.mark.parametrize("seed", range(40))
def test_certificates_where_every_layer_differs(seed):
    problem = oracle.random_problem(seed, layers=5, gpus=4, unlike=True)
    proof = pl.certificate(pl.solve(problem, "aggregated"))
    assert proof.refutes
    assert proof.check() > 0


def test_the_flagship_is_refuted_by_the_head():
    """80 layers, and GPUs for 80; but the last stage has the model's head, too."""
    cluster, model = pl.load_cluster("helix-single24"), pl.load_model("Llama-3-70B")
    problem = pl.Problem(cluster, model, pl.Workload(2048, 16, "decode"), pl.Roofline())
    with pytest.raises(pl.NotApplicable, match="objective='rate'"):
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
    with pytest.raises(pl.PipelabError, match="not refuted by its weights"):
        dataclasses.replace(medium, most_layers=1).check()
    single = pl.certificate(pl.solve(pl.load_case("medium")))
    negative = tuple(u if u else Fraction(-1) for u in single.prices)
    with pytest.raises(pl.PipelabError, match="a price below 0"):
        dataclasses.replace(single, prices=negative).check()
    p, tree = first_split()
    assert check_refutation(p, dataclasses.replace(tree, at=tree.at + 0.5)) == 0


def test_cases_never_rest_on_mixtures_left_out(monkeypatch):
    """What was left out of the program cannot be excluded by it."""
    found = []
    for seed in range(40):
        problem = oracle.random_problem(seed, gpus=5, layers=4, max_gpus_per_stage=3)
        instance = instance_of(problem)
        with monkeypatch.context() as patch:
            patch.setattr("pipelab.engine.stages.MOST_SUPPORTS", 1)
            for rate in instance.thresholds:
                proof = certificates.Certificate(problem, None, float(rate), "links", (), (), 0)
                if any(w.stages.links.narrowed for w in walks(Reach(instance, rate), {}, {})):
                    found.append(certificates.programs_of(instance, proof))
    assert found
    assert set(found) == {None}


def test_a_certificate_without_a_refutation_says_so_first(monkeypatch):
    result = pl.solve(pl.load_case("medium", max_gpus_per_stage=2), "aggregated")
    assert not str(pl.certificate(result)).startswith("Not verified")
    monkeypatch.setattr(refutation, "_MOST_LEAVES", 0)
    proof = pl.certificate(result)
    assert (proof.by, proof.refutes) == ("whole stages", False)
    assert str(proof).startswith("Not verified")
    with pytest.raises(pl.InvalidValue, match="rests on a solver's word"):
        proof.check()


@pytest.mark.parametrize("seed", range(12))
def test_cases_of_one_rate_do_not_prove_another(seed):
    """The cases of a proof belong to its rate: at the rate that is reached they prove nothing."""
    problem = roofline_oracle.random_problem(seed, layers=6, gpus=4)
    result = pl.solve(problem, "aggregated")
    proof = pl.certificate(result)
    if proof.cases is None:
        return
    with pytest.raises(pl.PipelabError, match="no proof"):
        dataclasses.replace(proof, rate=result.throughput).check()
