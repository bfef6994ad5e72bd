"""Several pipelines on one cluster: `deploy` against every division of small clusters, its bounds, stops and errors."""

import dataclasses
import itertools
import json
import threading

import node_oracle
import numpy as np
import pytest
from small_problems import (
    check_deployment,
    every_division,
    late,
    small,
    three_types,
    tight,
    timed,
)

import pipelab as pl
from pipelab.engine import instance
from pipelab.engine.deployments import closing, deploying, offers, parts
from pipelab.engine.deployments.column_generation import Generation
from pipelab.engine.deployments.parts import PartsSearch
from pipelab.engine.tolerances import ATTAINED


def families(seed):
    """Identical nodes, and no link that binds: only numbers count."""
    problem = node_oracle.random_problem(
        seed, gpus=5, layers=3, costs="roofline", network="uniform"
    )
    cluster = pl.Cluster(problem.cluster.gpus, np.full((len(problem.cluster),) * 2, 1e5))
    return dataclasses.replace(problem, cluster=cluster)


RANDOM = {
    "unequal links, twins, tables with gaps": small,
    "nodes": lambda seed: node_oracle.random_problem(seed, gpus=4, layers=4),
    "families": families,
    "memory for a few": lambda seed: tight(seed, late=seed % 2 == 0),
    "late links": lambda seed: late(small(seed, link_units="tokens"), seed),
}


def asked(kind, seed):
    """A problem with or without a number in flight, and batches."""
    problem = RANDOM[kind](seed)
    if timed(problem) and seed % 3 == 2:
        problem = problem.with_in_flight(2)
    several = seed % 3 == 0 and problem.batch_split == "even"
    return problem, [1, 4] if several else [problem.workload.batch_size]


@pytest.mark.quick(12)
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", RANDOM)
def test_equal_to_every_division(kind, seed):
    """Throughput, and every bound on the way; no pipeline counts with more than it attains."""
    (problem, batches), seen = asked(kind, seed), []
    truth = every_division(problem, batches)[-1]
    found = pl.deploy(problem, batches=batches, on_progress=seen.append)
    check(problem, found, truth, seen)
    if truth:
        assert found.details["progress"] == tuple(seen)
        assert {p.workload.batch_size for p in found.pipelines} <= set(batches)


def check(problem, found, truth, seen):
    if not truth:
        assert (found.status, found.pipelines) == ("infeasible", ())
        assert found.reason
        return
    assert found.status == "optimal", found
    assert found.throughput == found.bound == pytest.approx(truth, rel=1e-9)
    check_deployment(problem, found)
    bounds = found.details["bounds"]
    assert min(bounds["work of stages"], *bounds.values()) >= truth * (1 - 1e-9)
    for moment in seen:
        assert moment.bound is None or moment.bound >= truth * (1 - 1e-9)
        assert (moment.incumbent or 0.0) <= truth * (1 + 1e-9)


REFUSED_ONCE = [("nodes", 7059), ("nodes", 7079), ("families", 7104), ("families", 7293)]


@pytest.mark.quick(24)
@pytest.mark.parametrize("few", [0, 10**9])
@pytest.mark.parametrize(
    ("kind", "seed"), [*REFUSED_ONCE, *zip(itertools.cycle(RANDOM), range(5000, 5050))]
)
def test_labels_and_mixes_find_the_same(kind, seed, few, monkeypatch):
    """Each alone, however little is open."""
    monkeypatch.setattr(closing, "_FEW_MIXES", few)
    for module in (deploying, parts):
        monkeypatch.setattr(module, "_SMALL_OPEN_SHARE", -1.0)
    (problem, batches), seen = asked(kind, seed), []
    found = pl.deploy(problem, batches=batches, on_progress=seen.append)
    check(problem, found, every_division(problem, batches)[-1], seen)


def test_nodes_stay_apart_where_some_number_in_flight_is_slower_inside_of_one(monkeypatch):
    """It turns out when numbers in flight are halved, which is done at once here."""
    bound_by_work, problem = Generation.bound_by_work, families(7104)
    load = dataclasses.replace(problem.workload, in_flight=None)
    problem = dataclasses.replace(problem, workload=load)

    def halved(self):
        for offer in [*self.offers]:
            self.halve(offer)
        bound_by_work(self)

    monkeypatch.setattr(Generation, "bound_by_work", halved)
    check(problem, pl.deploy(problem), every_division(problem)[-1], [])


@pytest.mark.parametrize("batch", [16, 48])
@pytest.mark.parametrize("counts", [(1, 2, 4), (1, 4, 3), (0, 3, 5)])
def test_programs_over_mixes_prove_nothing_that_lists_do_not(counts, batch, monkeypatch):
    """Each alone, without prices of pipelines and parts before programs over mixes, and lists after them."""
    problem = three_types(counts, phase="decode", batch_size=batch)
    with monkeypatch.context() as without_mixes:
        without_mixes.setattr(deploying, "are_few_mixes", lambda counts: False)
        listed = pl.deploy(problem)
    for method in ("generate", "generate_exactly", "close_gap"):
        monkeypatch.setattr(Generation, method, lambda self, *most, **options: None)
    monkeypatch.setattr(PartsSearch, "add_pipelines", lambda self, most: None)
    monkeypatch.setattr(deploying, "_SMALL_OPEN_SHARE", -1.0)
    found = pl.deploy(problem)
    assert listed.status == "optimal"
    assert (
        found.throughput <= listed.throughput * (1 + ATTAINED) <= found.bound * (1 + 2 * ATTAINED)
    )
    assert found.status != "optimal" or found.throughput == pytest.approx(listed.throughput)


@pytest.mark.parametrize("seed", [5003, 5012, 5020, 5025, *range(5030, 5060)])
def test_where_lists_end_early_every_bound_holds(seed, monkeypatch):
    """As of large clusters: with one label at each boundary, and then with prices of pipelines that exist."""
    for name, most in (("_FEW_MIXES", 0), ("_FIRST_LABELS", 1), ("MOST_LABELS", 1)):
        monkeypatch.setattr(closing, name, most)
    monkeypatch.setattr(closing, "_MOST_LISTING_STEPS", 0)
    problem = small(seed)
    truth, found = every_division(problem)[-1], pl.deploy(problem)
    assert (found.throughput or 0.0) <= truth * (1 + 1e-9)
    assert found.bound is None or found.bound >= truth * (1 - 1e-9)
    assert found.status != "optimal" or found.throughput == pytest.approx(truth, rel=1e-9)
    assert not truth or found.bound <= 1.6 * truth


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", [3, 18, *range(19, 40)])
@pytest.mark.parametrize("kind", ["memory for a few", "late links", "nodes"])
def test_where_mixed_stages_are_too_many_to_list_nothing_wrong_is_proven(kind, seed, monkeypatch):
    problem, batches = asked(kind, seed)
    truth = every_division(problem, batches)[-1]
    monkeypatch.setattr(instance, "_MOST_CELLS", 1)
    try:
        found = pl.deploy(problem, batches=batches)
    except pl.errors.TooLarge:
        return
    if not truth or found.status in ("optimal", "infeasible"):
        assert (found.throughput or 0.0) == pytest.approx(truth or 0.0, rel=1e-9)
    if truth:
        assert (found.throughput or 0.0) * (1 - 1e-9) <= truth <= found.bound * (1 + 1e-9)


def three_nodes_of_three():
    """A layer that two GPUs of one node hold together, cut among them, and nothing else does."""
    gpus = tuple(pl.GPU("L4", 2.0, 1.0, f"node {i // 3}", 300.0) for i in range(9))
    model = dataclasses.replace(pl.load_model("Llama-3-8B"), layers=1)
    load, links = pl.Workload(512, 1, "decode"), np.full((9, 9), 100.0)
    return pl.Problem(pl.Cluster(gpus, links), model, load, pl.Roofline(), max_gpus_per_stage=2)


def test_stages_that_nodes_have_no_room_for_are_not_counted(monkeypatch):
    """Four pairs by numbers, three in nodes: proven where nodes are kept apart, and else a gap."""
    problem = three_nodes_of_three()
    pair = pl.evaluate(problem, pl.Placement.of([(1, (0, 1))])).throughput
    found = pl.deploy(problem)
    assert (found.status, found.count) == ("optimal", 3)
    assert found.throughput == pytest.approx(3 * pair)
    assert pl.deploy(problem, 2.5 * pair).count == 3
    more = pl.deploy(problem, 3.5 * pair)
    assert more.status == "infeasible"

    def together(problems, deadline, keep_nodes_apart=False, **known):
        if keep_nodes_apart:
            raise pl.errors.TooLarge("too many compositions")
        return offers.first_offers(problems, deadline, **known)

    monkeypatch.setattr(deploying, "first_offers", together)
    found = pl.deploy(problem)
    assert (found.status, found.count) == ("feasible", 3)
    assert found.bound >= 4 * pair * (1 - 1e-9)
    assert found.sentence
    assert pl.deploy(problem, 3.5 * pair).status == "unknown"


# Stops, errors, files


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_an_early_end_keeps_a_valid_deployment_and_a_valid_bound(phase):
    problem, stop = three_types((4, 8, 12), phase=phase), threading.Event()
    stop.set()
    best = pl.deploy(problem).throughput
    for options, by in (
        ({"time_limit": 0.0}, "time limit"),
        ({"time_limit": 0.05}, "time limit"),
        ({"stop": stop}, "stop"),
        ({"gap": 0.2}, "gap limit"),
    ):
        found = pl.deploy(problem, **options)
        assert found.status == "optimal" or found.stopped_by == by
        assert found.bound is None or found.bound >= best * (1 - 1e-9)
        if found.pipelines:
            check_deployment(problem, found)
            assert found.throughput <= best * (1 + 1e-9)
    assert found.gap <= 0.2


def eight_types(each, *load, **options):
    memory = pl.hardware.gpus()["memory_gb"]
    types = ["A100-SXM-80", "A100-SXM-40", "H100-SXM", "L4", "T4", "V100-SXM-32", "L40S", "A10"]
    cluster = pl.Cluster.from_counts(dict.fromkeys(types, each), memory.to_dict(), 12.5)
    model = pl.load_model("Llama-3-70B")
    return pl.Problem(cluster, model, pl.Workload(*load), pl.Roofline(), **options)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("problem", "gap"),
    [
        (lambda: eight_types(125, 1000, 1), 0.01),
        (lambda: eight_types(4, 1000, 8, "decode", max_gpus_per_stage=2, same_type_stages=False), 0.02),
        (lambda: pl.load_case("medium", max_gpus_per_stage=2), 0.06),
    ],
)  # fmt: skip
def test_of_large_clusters_little_is_left_open(problem, gap):
    found = pl.deploy(problem(), gap=gap, time_limit=600)  # ends at this gap
    assert found.gap <= gap
    check_deployment(found.problem, found)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"batches": []}, "expected batch sizes"),
        ({}, {"requests_per_s": 1, "at_least": 5}, "at_least"),
        ({"phase": "decode"}, {"tpot_ms": 50}, "output_tokens"),
    ],
)
def test_what_does_not_fit_is_refused(change, options, message):
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.deploy(three_types(**change), **options)


def test_a_load_needs_prices_and_a_deployment_has_several_timelines():
    cluster = pl.Cluster.from_counts({"L4": 2}, 24, 12.5)
    problem = dataclasses.replace(three_types(), cluster=cluster)
    with pytest.raises(pl.errors.InvalidValue, match="usd_per_hour"):
        pl.deploy(problem, 100.0)
    with pytest.raises(pl.errors.InvalidValue, match=r"x\.pipelines\[0\]\.placement"):
        pl.timeline_of(problem, pl.deploy(problem))


def test_prompts_and_answers_count_in_requests_and_in_dollars():
    """500 prompt tokens and 100 answer tokens a request: 600 tokens are paid for 100 written."""
    problem = three_types(sequence_length=500, phase="mixed", output_tokens=100)
    found = pl.deploy(problem, 1.0)
    assert found.requests_per_s == pytest.approx(found.throughput / 100)
    tokens = found.requests_per_s * 600 * 3600
    assert found.usd_per_million_tokens == pytest.approx(found.usd_per_hour / tokens * 1e6)


def test_rates_beyond_what_a_solver_takes_for_infinite():
    tiny = pl.load_case("tiny", link_units="tokens")
    table = {name: {(1, b): 1e-16 for b in (1, 16)} for name in ("A100", "V100")}
    costs = pl.hardware.Measured(table, tiny.costs, per_layer=True)
    found = pl.deploy(dataclasses.replace(tiny, costs=costs))
    assert (found.status, found.count) == ("optimal", 4)
    assert found.throughput == pytest.approx(32768e19)


def nothing_fits(seed):
    """Too little memory for the model, or for any layer; one type or several; with prices, with some, with none."""
    rng = np.random.default_rng(seed)
    types = [*"ABC"][: int(rng.integers(1, 4))]
    memory = {t: float(rng.choice([0.5, 2.5, 7.0])) for t in types}
    counts = {t: int(rng.integers(1, 3)) for t in types}
    price = {t: float(rng.uniform(0.1, 4)) for t in types} if seed % 3 else None
    cluster = pl.Cluster.from_counts(counts, memory, 1.0, usd_per_hour=price)
    held = sum(n * (memory[t] // 2) for t, n in counts.items())
    model = pl.Model("m", int(held) + 1 + int(rng.integers(0, 3)), 8, 8, 2.0)
    phase = str(rng.choice(["decode", "prefill", "mixed"]))
    load = pl.Workload(100, 1, phase, output_tokens=10)
    costs = pl.LayerTimes({t: float(rng.uniform(1, 3)) for t in types})
    return pl.Problem(cluster, model, load, costs, max_gpus_per_stage=int(rng.integers(1, 3)))


@pytest.mark.quick(1)
@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", [2, 3, 0, 1, *range(4, 24)])
def test_where_nothing_fits_every_answer_about_deployments_says_so(seed):
    problem = nothing_fits(seed)
    requests, dollars = {"tpot_ms": 50.0, "ttft_ms": 1e4}, bool(seed % 3)
    asked = [{}, {"batches": [1, 2]}, {"single": True}, requests, {"pools": True}]
    for options in asked + [{"at_least": 5.0}, {"requests_per_s": 0.1}] * dollars:
        found = pl.deploy(problem, **options)
        assert (found.status, found.pipelines, found.value) == ("infeasible", (), None)
        assert found.reason
        assert (found.evaluation, found.usd_per_million_tokens) == (None, None)
        assert len(found.to_frame()) == 0
        assert len(found.one_more()) == len({gpu.type for gpu in problem.cluster.gpus})
        assert json.dumps(found.to_dict())
        assert found._repr_html_()
    curves = [("gpus", {})]
    curves += [
        ("usd_per_hour", {}),
        ("usd_per_hour", requests),
        ("usd_per_hour", {"pools": True}),
    ] * dollars
    for against, options in curves:
        curve = pl.trade_off(problem, against, deployments=True, **options)
        assert curve.points == ()
        assert len(curve.to_frame()) == 0
        assert curve._repr_html_()
