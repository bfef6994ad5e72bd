"""Several pipelines on one cluster: `deploy` against every division of small clusters, its bounds, stops and errors."""

import dataclasses
import json
import math
import re
import threading

import node_oracle
import numpy as np
import pytest
from test_in_flight import every_pair, tight
from test_objectives import late, priced, small

import oracle
import pipelab as pl
from pipelab.column_generation import deploy_by_column_generation
from pipelab.engine.deployments import column_generation, deploying, offers


def best_by_gpus(problem, batches):
    """The rate of the best pipeline on every set of GPUs, as a list by bit mask; 0 where none fits."""
    best = [0.0] * (1 << len(problem.cluster))
    for batch in batches:
        load = dataclasses.replace(problem.workload, batch_size=batch)
        own = dataclasses.replace(problem, workload=load)
        if timed(problem):
            every = [(rate, used) for rate, _, used, _ in every_pair(own)]
        else:
            every = [(rate, used) for rate, used, _ in oracle.placements(own)]
        for rate, used in every:
            mask = sum(1 << g for g in used)
            best[mask] = max(best[mask], rate)
    return best


def timed(problem):
    """Whether links take time, so that what is in flight matters."""
    return problem.costs.link_units != "transfers"


def every_division(problem, batches=None):
    """For every set of GPUs the greatest sum of rates over all its divisions into pipelines."""
    return divided(best_by_gpus(problem, batches or [problem.workload.batch_size]))


def divided(best):
    """For every set of GPUs the greatest sum over all its divisions into sets, by bit mask."""
    total = [0.0] * len(best)
    for mask in range(1, len(best)):
        lowest, part = mask & -mask, mask
        total[mask] = total[mask ^ lowest]  # its lowest GPU is in no pipeline
        while part:
            if part & lowest and best[part]:
                total[mask] = max(total[mask], best[part] + total[mask ^ part])
            part = (part - 1) & mask
    return total


def dollars(problem, mask):
    return sum(g.usd_per_hour for i, g in enumerate(problem.cluster.gpus) if mask >> i & 1)


def check_valid(problem, deployment):
    """GPUs of their own, the rates that are said, and memory for what is in flight, as the simulator has it."""
    found = pl.evaluate(problem, deployment)
    assert found.throughput == pytest.approx(deployment.throughput, rel=1e-12)
    gpus = [g for p in deployment.pipelines for r in p.replicas for g in r.gpus]
    assert len(gpus) == len(set(gpus))
    rates = [p.throughput for p in deployment.pipelines]
    assert rates == sorted(rates, reverse=True)
    for pipeline in deployment.pipelines if timed(problem) else ():
        own = dataclasses.replace(problem, workload=pipeline.workload)
        placed = pl.timeline_of(own, pipeline.placement, in_flight=pipeline.workload.in_flight)
        assert placed.steady_rate == pytest.approx(pipeline.throughput, rel=1e-9)


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
    check_valid(problem, found)
    for moment in seen:
        assert moment.bound is None or moment.bound >= truth * (1 - 1e-9)
        assert (moment.incumbent or 0.0) <= truth * (1 + 1e-9)


@pytest.mark.parametrize("few", [0, 10**9])
@pytest.mark.parametrize("seed", range(5000, 5016))
def test_labels_and_tables_find_the_same(seed, few, monkeypatch):
    """Each alone."""
    monkeypatch.setattr(column_generation, "_FEW_MIXES", few)
    monkeypatch.setattr(column_generation, "_SMALL_OPEN_SHARE", -1.0)
    problem, seen = small(seed), []
    if seed % 2:
        problem = late(small(seed, link_units="tokens"), seed)
    found = pl.deploy(problem, on_progress=seen.append)
    check(problem, found, every_division(problem)[-1], seen)


@pytest.mark.parametrize("seed", [5003, 5012, 5020, 5025, *range(5030, 5060)])
def test_where_lists_end_early_every_bound_holds(seed, monkeypatch):
    """As of large clusters: with one label at each boundary, and then with prices of pipelines that exist."""
    for name, most in (("_FEW_MIXES", 0), ("_FIRST_LABELS", 1), ("MOST_LABELS", 1)):
        monkeypatch.setattr(column_generation, name, most)
    monkeypatch.setattr(column_generation, "_MOST_LISTING_STEPS", 0)
    problem = small(seed)
    truth, found = every_division(problem)[-1], pl.deploy(problem)
    assert (found.throughput or 0.0) <= truth * (1 + 1e-9)
    assert found.bound is None or found.bound >= truth * (1 - 1e-9)
    assert found.status != "optimal" or found.throughput == pytest.approx(truth, rel=1e-9)
    assert not truth or found.bound <= 1.6 * truth


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", ["unequal links, twins, tables with gaps", "memory for a few"])
def test_the_cheapest_deployment_for_a_load(kind, seed):
    problem, batches = asked(kind, seed)
    problem = priced(problem, seed)
    total = every_division(problem, batches)
    if not total[-1]:
        assert pl.deploy(problem, 1.0, batches=batches).status == "infeasible"
        return
    for share in (0.3, 0.8, 1.0):
        load = share * total[-1]
        truth = min(dollars(problem, m) for m, t in enumerate(total) if t >= load * (1 - 1e-12))
        found = pl.deploy(problem, load, batches=batches)
        assert found.status == "optimal", (found, truth)
        assert found.usd_per_hour == pytest.approx(truth, rel=1e-9)
        assert found.bound == pytest.approx(truth, rel=1e-9)
        assert found.throughput >= load * (1 - 1e-9)
        check_valid(problem, found)
    above = pl.deploy(problem, 1.01 * total[-1], batches=batches)
    assert above.status == "infeasible"
    assert f"{total[-1]:.7g}" in above.reason
    assert "2 such clusters would serve it" in above.reason


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(24))
def test_equal_to_the_definition(seed):
    """As good as textbook column generation on GPUs identical type by type, and not above its bound."""
    rng = np.random.default_rng(seed)
    counts = {"A100": int(rng.integers(1, 4)), "T4": int(rng.integers(1, 5))}
    memory = {"A100": float(rng.choice([3, 5, 8])), "T4": float(rng.choice([2, 3, 4]))}
    tiny = pl.load_case("tiny", max_gpus_per_stage=int(rng.integers(1, 3)), link_units="tokens")
    model = dataclasses.replace(tiny.model, layers=6)
    cluster = pl.Cluster.from_counts(counts, memory, 1e6)
    problem = dataclasses.replace(tiny, cluster=cluster, model=model)
    defined, found = deploy_by_column_generation(problem), pl.deploy(problem)
    if not defined.placements:
        assert (found.status, defined.bound) == ("infeasible", 0.0)
        return
    total = sum(pl.evaluate(problem, placement).throughput for placement in defined.placements)
    gpus = [g for placement in defined.placements for g in placement.gpus]
    assert len(gpus) == len(set(gpus))
    assert total == pytest.approx(defined.throughput, rel=1e-9)
    assert total * (1 - 1e-9) <= found.throughput <= defined.bound * (1 + 1e-7)
    prices = found.details["dual_prices"]
    assert found.throughput <= sum(counts[t] * price for t, price in prices.items()) * (1 + 1e-9)
    slow = pl.Cluster.from_counts({"T4": 6}, {"T4": 3}, 1e-5)
    slow = dataclasses.replace(problem, cluster=slow, max_gpus_per_stage=1)
    with pytest.raises(pl.errors.NotApplicable, match="links that do not bind"):
        deploy_by_column_generation(slow)


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
    assert "2 such clusters would serve it" in more.reason

    def together(problems, deadline, keep_nodes_apart=False, limits=None):
        if keep_nodes_apart:
            raise pl.errors.TooLarge("too many compositions", {})
        return offers.first_offers(problems, deadline)

    monkeypatch.setattr(deploying, "first_offers", together)
    found = pl.deploy(problem)
    assert (found.status, found.count) == ("feasible", 3)
    assert found.bound >= 4 * pair * (1 - 1e-9)
    assert "packed into nodes" in found.sentence
    assert pl.deploy(problem, 3.5 * pair).status == "unknown"


# Stops, errors, files


def heterogeneous(counts=(2, 4, 4), model="Llama-3-8B", **workload):
    memory = {"A100-SXM-40": 40.0, "L4": 24.0, "T4": 16.0}
    price = {"A100-SXM-40": 1.5, "L4": 0.7, "T4": 0.35}
    cluster = pl.Cluster.from_counts(
        dict(zip(memory, counts, strict=True)), memory, 12.5, usd_per_hour=price
    )
    load = pl.Workload(**({"sequence_length": 2048, "batch_size": 16} | workload))
    return pl.Problem(cluster, pl.load_model(model), load, pl.Roofline(), name="mix")


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_an_early_end_keeps_a_valid_deployment_and_a_valid_bound(phase):
    problem, stop = heterogeneous((4, 8, 12), phase=phase), threading.Event()
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
            check_valid(problem, found)
            assert found.throughput <= best * (1 + 1e-9)
    assert found.gap <= 0.2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tpot_ms": 11}, "after 1 round the search had found no pipeline"),
        ({"tpot_ms": 11, "single": True}, "after 1 round the search had found no pipeline"),
        ({"tpot_ms": 11, "pools": True}, "pipelines, none of them for decode"),
        ({"tpot_ms": 30, "ttft_ms": 600, "pools": True}, "pipelines, and no deployment of them"),
        (
            {"tpot_ms": 11, "on_progress": None},
            "the first round of the search was not over|the rates of stages were still being listed",
        ),
    ],
)
def test_a_stop_without_a_deployment_says_how_far_it_came(options, said):
    """Of one type each token comes soon, and of the other the first does not."""
    answers = {"sequence_length": 2000, "batch_size": 8, "phase": "mixed", "output_tokens": 200}
    stop = threading.Event()
    options = {"on_progress": lambda _: stop.set()} | options
    if options["on_progress"] is None:
        stop.set()
    found = pl.deploy(heterogeneous((1, 3, 0), **answers), stop=stop, **options)
    assert (found.status, found.stopped_by) == ("unknown", "stop")
    assert re.search(f"({said})$", found.reason)


def binding_links(types=8, each=40):
    """Each pair of types with links of its own: a bound without links is 58 % off."""
    rng = np.random.default_rng(0)
    base = list(pl.writeup.load_coefficients().coefficients.values())
    rates = {
        f"type {i}": dataclasses.replace(
            base[i % len(base)], constant=base[i % len(base)].constant * c
        )
        for i, c in enumerate(rng.uniform(0.7, 1.3, types))
    }
    memory = {name: float(rng.choice([16, 24, 40, 48, 80])) for name in rates}
    links = {
        (a, b): float(rng.choice([10, 25, 50, 100, 200])) for a in rates for b in rates if a <= b
    }
    cluster = pl.Cluster.from_counts(dict.fromkeys(rates, each), memory, links)
    model, load = pl.Model("large", 126, 8192, 28672, 2.5), pl.Workload(512, 32)
    costs = pl.writeup.LinearThroughput(rates, link_units="transfers")
    return pl.Problem(cluster, model, load, costs, 8, same_type_stages=False)


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
        (binding_links, 0.02),
        (lambda: pl.load_case("medium", max_gpus_per_stage=2), 0.06),
    ],
)  # fmt: skip
def test_of_large_clusters_little_is_left_open(problem, gap):
    found = pl.deploy(problem(), gap=gap / 2, time_limit=30)
    assert found.gap <= gap
    check_valid(found.problem, found)


def test_what_nothing_can_serve_says_why(tmp_path):
    found = pl.deploy(heterogeneous((0, 1, 1), "Llama-3-70B"))
    assert (found.status, found.pipelines) == ("infeasible", ())
    assert "layers" in found.reason
    with pytest.raises(pl.errors.InvalidValue, match="expected a deployment with a pipeline"):
        pl.save(found, tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"at_least": math.nan}, "at_least"),
        ({}, {"batches": []}, "expected batch sizes"),
        ({}, {"batches": [0]}, "batches"),
        ({}, {"gap": -0.1}, "gap"),
        ({}, {"time_limit": "soon"}, "time_limit"),
        ({}, {"stop": True}, "stop"),
        ({}, {"on_progress": 3}, "on_progress"),
        ({}, {"tpot_ms": -1}, "tpot_ms"),
        ({}, {"ttft_ms": 0}, "ttft_ms"),
        ({}, {"pools": 1}, "pools"),
        ({}, {"requests_per_s": 1, "at_least": 5}, "at_least"),
        ({"phase": "decode"}, {"tpot_ms": 50}, "output_tokens"),
    ],
)
def test_what_does_not_fit_is_refused(change, options, message):
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.deploy(heterogeneous(**change), **options)


def test_a_load_needs_prices():
    cluster = pl.Cluster.from_counts({"L4": 2}, 24, 12.5)
    with pytest.raises(pl.errors.InvalidValue, match="usd_per_hour"):
        pl.deploy(dataclasses.replace(heterogeneous(), cluster=cluster), 100.0)


@pytest.mark.slow
def test_saved_and_drawn(tmp_path):
    problem = heterogeneous(phase="decode")
    found = pl.deploy(problem)
    assert (found.to_frame()["in_flight"] >= 1).all()
    assert found.evaluation.throughput == pytest.approx(found.throughput, rel=1e-12)
    document = json.loads(pl.save(found, tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert document["throughput_tokens_per_s"] == found.throughput
    assert sum(len(p["replicas"]) for p in document["pipelines"]) == found.count
    with pytest.raises(pl.errors.InvalidValue, match=r"expected a name that ends in \.json"):
        pl.save(found, tmp_path / "plan.csv")
    figure = pl.plot(found)
    assert f"{found.count} pipelines, proven best" in figure.layout.title.text
    assert len(figure.data[0].y) == sum(len(p.placement) for p in found.pipelines)
    message = r"one of its pipelines: x\.pipelines\[0\]\.placement"
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.timeline_of(found.problem, found)


def test_prompts_and_answers_count_in_requests_and_in_dollars():
    """500 prompt tokens and 100 answer tokens a request: 600 tokens are paid for 100 written."""
    problem = heterogeneous(sequence_length=500, phase="mixed", output_tokens=100)
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


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(24))
def test_where_nothing_fits_every_answer_about_deployments_says_so(seed):
    problem = nothing_fits(seed)
    requests, dollars = {"tpot_ms": 50.0, "ttft_ms": 1e4}, bool(seed % 3)
    asked = [{}, {"batches": [1, 2]}, {"single": True}, requests, {"pools": True}]
    for options in asked + [{"at_least": 5.0}, {"requests_per_s": 0.1}] * dollars:
        found = pl.deploy(problem, **options)
        assert (found.status, found.pipelines, found.value) == ("infeasible", (), None)
        assert found.reason
        assert found.reason in found.sentence
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
