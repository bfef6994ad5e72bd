"""The evaluator accepts what is right to the last digit and refuses everything else."""

import ast
import dataclasses
import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab.deployment_and_flow import DeploymentPlan, FlowPlan, Replicas
from pipelab.placement import Stage


@pytest.mark.parametrize("first", range(0, 400, 20))
def test_the_evaluator_agrees_with_the_oracle(first):
    for seed in range(first, first + 20):
        _compare_with_the_oracle(seed)


def _compare_with_the_oracle(seed):
    """Stages and links one by one, the pass, and the fewest in flight that yield the rate."""
    problem = oracle.random_problem(seed, link_units=("transfers", "tokens")[seed % 2])
    rng, size = np.random.default_rng(seed), len(problem.cluster)
    late = dataclasses.replace(problem.cluster, latency_ms=rng.uniform(0, 20, (size, size)))
    problem, layers, chosen = dataclasses.replace(problem, cluster=late), problem.model.layers, []
    sets = list(oracle.gpu_sets(problem))
    for i in rng.permutation(len(sets)):
        if len(chosen) < layers and not {g for s in chosen for g in s} & set(sets[i]):
            chosen.append(sets[i])
    cuts = sorted(rng.choice(np.arange(1, layers), len(chosen) - 1, False).tolist())
    spans = [range(a, b) for a, b in pairwise([0, *cuts, layers])]
    placement = pl.Placement.of([(len(s), g) for s, g in zip(spans, chosen, strict=True)])
    rates = [oracle.stage(problem, gpus, span) for span, gpus in zip(spans, chosen, strict=True)]
    if None in rates:
        with pytest.raises(pl.errors.InvalidPlacement, match="GB"):
            pl.evaluate(problem, placement)
        return
    found = pl.evaluate(problem, placement)
    assert [stage.throughput for stage in found.stages] == pytest.approx(rates, rel=1e-9)
    links = [oracle.link(problem, a, b) for a, b in pairwise(chosen)]
    assert [link.throughput for link in found.links] == pytest.approx(links, rel=1e-9)
    assert found.throughput == pytest.approx(min(rates + links), rel=1e-9)
    slow = {f"stage {n}": rate for n, rate in enumerate(rates, 1)}
    slow |= {f"link {n}→{n + 1}": rate for n, rate in enumerate(links, 1)}
    named = [part for part, rate in slow.items() if rate <= min(slow.values()) * (1 + 1e-9)]
    assert sorted(found.bottlenecks) == sorted(named)
    if problem.costs.link_units == "tokens":
        took = [oracle.pass_seconds(problem, *part) for part in zip(chosen, spans, strict=True)]
        took += [oracle.message_seconds(problem, a, b) for a, b in pairwise(chosen)]
        assert found.seconds_per_pass == pytest.approx(sum(took), rel=1e-6)
        passes = found.throughput * found.seconds_per_pass / problem.workload.tokens
        assert found.in_flight_needed == max(1, math.ceil(passes * (1 - 1e-9)))


REFUSED = {
    "layer 4 is not assigned to any stage, left out at the end": [(range(3), (0,))],
    "layers 1–4 are not assigned to any stage, left out at the end": [],
    "layer 2 is not assigned to any stage, left out before stage 2": [
        (range(1), (0,)),
        (range(2, 4), (1,)),
    ],
    "stage 2 covers layer 3 once more": [(range(3), (0,)), (range(2, 4), (1,))],
    "stage 2 covers layers 1–2 once more": [(range(2, 4), (0,)), (range(2), (1,))],
    "stage 1 has layers 1–5; the model has layers 1–4": [(range(5), (0,))],
    "GPU 0 is used more than once": [(range(2), (0,)), (range(2, 4), (0,))],
    "stage 1 uses GPU 4; the cluster has ids 0–3": [(range(4), (4,))],
    "stage 1 uses GPU -1": [(range(4), (-1,))],
    "stage 1 has 3 GPUs, more than max_gpus_per_stage = 2": [(range(4), (0, 1, 3))],
    "stage 1 has no GPU": [(range(4), ())],
    "stage 1 mixes A100, V100, but same_type_stages": [(range(4), (0, 2))],
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_wrong_placement_is_refused(message, tiny):
    placement = pl.Placement(tuple(Stage(layers, gpus) for layers, gpus in REFUSED[message]))
    problem = dataclasses.replace(tiny, same_type_stages="mixes" in message)
    with pytest.raises(pl.errors.InvalidPlacement, match=message):
        pl.evaluate(problem, placement)


@pytest.mark.parametrize("name", ["pipelines", "ways", "stages"])
def test_what_only_looks_like_a_plan_is_refused(name, tiny):
    with pytest.raises(pl.errors.InvalidValue, match=r"placement = .*: expected a Placement"):
        pl.evaluate(tiny, SimpleNamespace(**{name: ()}))


def test_plans_made_by_hand_are_evaluated_as_those_that_are_found(tiny):
    tokens = dataclasses.replace(tiny, costs=dataclasses.replace(tiny.costs, link_units="tokens"))
    found, flow = pl.deploy(tokens), pl.flow(tokens)
    pipelines = tuple(Replicas(replicas=p.replicas, workload=p.workload) for p in found.pipelines)
    by_hand = DeploymentPlan(pipelines=pipelines)
    assert by_hand.count == found.count
    assert pl.evaluate(tokens, by_hand).throughput == found.throughput
    by_hand = FlowPlan(stages=flow.stages, in_flight=flow.in_flight, ways=flow.ways)
    assert pl.evaluate(tokens, by_hand).throughput == flow.throughput


def test_layers_are_counted_from_1_wherever_a_placement_is_written():
    placement = pl.Placement.of([(2, (0,)), (2, (1,))])
    assert placement.to_dict()["stages"] == [
        {"first_layer": 1, "last_layer": 2, "gpus": [0]},
        {"first_layer": 3, "last_layer": 4, "gpus": [1]},
    ]
    assert "layers 3–4 on [1]" in str(placement)


def test_memory_that_fits_exactly_is_accepted_and_what_exceeds_it_is_refused(tiny, two_stages):
    whole = pl.Placement.of([(4, (0,))])
    need = 4 * 0.5 + tiny.costs.activation_gb(tiny.model, tiny.workload)
    exact = dataclasses.replace(tiny, cluster=pl.Cluster.from_counts({"A100": 1}, need, {}))
    assert pl.evaluate(exact, whole).throughput == pytest.approx(217.52)
    told = r"needs 101.6 GB on GPU 0 \(A100\), which has 80 GB"
    with pytest.raises(pl.errors.InvalidPlacement, match=told):
        pl.evaluate(two_stages, whole)


def test_the_evaluator_shares_no_code_with_any_formulation():
    tree = ast.parse(Path(pl.evaluate.__code__.co_filename).read_text())
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    library = {
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "functools",
        "itertools",
        "typing",
    }
    ours = {
        f"pipelab.{name}"
        for name in ("costs", "deployment_and_flow", "display", "errors", "fields")
    } | {"pipelab.placement", "pipelab.problem"}
    assert modules <= library | ours


def test_all_defects_are_listed(tiny):
    with pytest.raises(pl.errors.InvalidPlacement) as caught:
        pl.evaluate(tiny, pl.Placement.of([(1, (0,)), (1, (0, 9))]))
    assert len(caught.value.defects) == 3
