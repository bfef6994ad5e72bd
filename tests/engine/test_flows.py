"""Flows: equal to brute force with an independent maximum flow, never above the bound, and Helix's three instances."""

import dataclasses
import itertools
import json
import math
import threading

import node_oracle
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

import oracle
import pipelab as pl
from pipelab import course
from pipelab.engine.deadline import NEVER
from pipelab.engine.flows import flowing
from pipelab.engine.flows.bounds import Cases
from pipelab.engine.flows.capacities import stages_of
from pipelab.engine.flows.fans import fanned
from pipelab.engine.flows.result import Flow
from pipelab.engine.flows.routing import Routing
from pipelab.engine.flows.series_parallel import Blocks
from pipelab.flows import Held, Way, exhaustive_flow, greatest_flow
from pipelab.placement import Stage

LEAST_MBYTE = 1e-3  # GB


def random_problem(seed, gpus=4, layers=5):
    """Types of different speed and memory, links of which some bind and are slow one way only."""
    rng = np.random.default_rng(seed)
    number, layers = int(rng.integers(2, gpus + 1)), int(rng.integers(2, layers + 1))
    types = rng.integers(0, 3, number)
    ms = {f"T{k}": float(rng.choice([1, 2, 3, 5, 8])) for k in range(3)}
    model = pl.Model("random", layers, 1000, 4000, 1.0, bytes_per_element=2)
    memory = rng.integers(1, layers + 1, 3)
    nodes = [pl.GPU(f"T{k}", float(memory[k])) for k in types]
    fast = rng.random((number, number)) < rng.choice([0.0, 0.5, 1.0])
    messages = np.where(fast, 10_000.0, rng.choice([60.0, 150.0, 300.0, 700.0], (number, number)))
    latency = np.where(rng.random((number, number)) < 0.3, rng.choice([0.0, 1.0, 4.0]), 0.0)
    np.fill_diagonal(messages, 0)
    np.fill_diagonal(latency, 0)
    cluster = pl.Cluster(nodes, messages * LEAST_MBYTE * 0.2, latency_ms=latency)
    return pl.Problem(cluster, model, pl.Workload(100, 1), pl.LayerTimes(ms), name=f"random {seed}")


class WithCache(pl.LayerTimes):
    """Layer times, and a KV cache of each microbatch in flight beside the weights."""

    def stage(self, model, workload, gpus, layers, batch_split):
        cost = super().stage(model, workload, gpus, layers, batch_split)
        each = 0.5 * len(layers) * workload.in_memory
        return cost._replace(memory_gb=tuple(gb + each for gb in cost.memory_gb))


def with_cache(problem):
    """The same, where memory for all in flight binds: slow links keep many of them."""
    cluster = problem.cluster
    gpus = [dataclasses.replace(gpu, memory_gb=gpu.memory_gb + 1) for gpu in cluster.gpus]
    late = np.where(np.eye(len(gpus), dtype=bool), 0.0, cluster.latency_matrix() + 8)
    slow = dataclasses.replace(cluster, gpus=tuple(gpus), latency_ms=late)
    return dataclasses.replace(problem, cluster=slow, costs=WithCache(problem.costs.ms_per_layer))


def in_two_sites(problem):
    """The same with memory that binds and two sites: links between them are slow both ways, inside them are none."""
    kept, site = with_cache(problem), np.arange(len(problem.cluster)) % 2
    late = np.where(site[:, None] == site, 0.0, 12.0)
    return dataclasses.replace(kept, cluster=dataclasses.replace(kept.cluster, latency_ms=late))


def brute_force(problem):
    """The greatest flow over all spans, by scipy's maximum flow, from the raw numbers."""
    layers, gpus, tokens = problem.model.layers, problem.cluster.gpus, 100
    link = problem.cluster.bandwidth_matrix() / (100 * 1000 * 2 / 1e9) * tokens
    every, spans, rates, passed = list(itertools.combinations(range(layers + 1), 2)), [], [], []
    for gpu in gpus:
        own = [(0, 0), *((a, e) for a, e in every if e - a <= gpu.memory_gb)]
        ms = problem.costs.ms_per_layer[gpu.type]
        spans.append(own)
        rates.append([1000 * tokens / (ms * (e - a)) if e else 0.0 for a, e in own])
        held = np.array([[a <= i < e for i in range(layers)] for a, e in own])
        passed.append(held * np.array(rates[-1])[:, None])
    choices = np.array(list(itertools.product(*(range(len(own)) for own in spans))))
    least = sum(own[choices[:, g]] for g, own in enumerate(passed)).min(axis=1)
    best = 0.0
    for index in np.argsort(-least):
        if least[index] <= best * (1 + 1e-9):
            break
        placed, through = (
            [own[i] for own, i in zip(of, choices[index], strict=True)] for of in (spans, rates)
        )
        best = max(best, max_flow(placed, through, link, layers))
    return best


def max_flow(placed, rates, link, layers):
    """In whole hundredths of a token per second."""
    n = len(placed)
    capacity = np.zeros((2 * n + 2, 2 * n + 2))
    for v, (start, stop) in enumerate(placed):
        capacity[v, n + v] = rates[v]
        capacity[2 * n, v] = 1e6 * (start == 0 < stop)
        capacity[n + v, 2 * n + 1] = 1e6 * (stop == layers)
        for w, (first, last) in enumerate(placed):
            if first <= stop < last:
                capacity[n + v, w] = link[v, w]
    whole = csr_array(np.rint(100 * capacity).astype(np.int32))
    return maximum_flow(whole, 2 * n, 2 * n + 1).flow_value / 100


def total(ways):
    return math.fsum(way.rate for way in ways)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(500))
def test_rates_equal_brute_force(seed):
    """And so does the definition."""
    problem = random_problem(seed)
    found, best = pl.flow(problem, "rate"), brute_force(problem)
    defined = total(exhaustive_flow(problem, full=True)[1]) if seed < 100 else best
    assert defined == pytest.approx(best, rel=1e-5)
    if not best:
        assert found.status == "infeasible"
        return
    assert found.status == "optimal", found.sentence
    assert found.throughput == pytest.approx(best, rel=1e-5)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", [32, 13, 129, 103, 24, 11, *range(130, 430)])
def test_what_all_in_flight_have_memory_for_equals_the_definition(seed):
    """Memory that binds, several GPUs to a stage, nodes, or sites; the bound by patterns is not below it."""
    problem = [
        lambda: oracle.random_problem(seed, layers=4, gpus=3, link_units="tokens"),
        lambda: with_cache(random_problem(seed, gpus=3, layers=4)),
        lambda: node_oracle.random_problem(seed, gpus=4, layers=2, costs="roofline"),
        lambda: in_two_sites(random_problem(seed, gpus=4, layers=3)),
    ][seed % 4]().with_in_flight(None)
    found, best = pl.flow(problem), total(exhaustive_flow(problem)[1])
    if not best:
        assert found.status == "infeasible"
        return
    assert found.status == "optimal", found.sentence
    assert found.throughput == pytest.approx(best, rel=1e-5)
    assert found.throughput >= pl.deploy(problem).throughput * (1 - 1e-6)
    cases = Cases(stages_of(problem, False, NEVER), pl.solve(problem).bound)
    for sums_only in (True, False):
        assert cases.greatest(0.0, math.inf, 1e-3, NEVER, sums_only) >= best * (1 - 1e-6)


MOVED = (36, 44, 64, 88)  # slow links, which blocks do not see: one stage is moved


@pytest.mark.parametrize("seed", [*MOVED, *range(100, 300)])
def test_the_search_stays_below_and_the_bound_above(seed, monkeypatch):
    """As for problems that are too large for one program."""
    monkeypatch.setattr(flowing, "every_option", lambda *_: [])
    problem = random_problem(seed)
    found, best = pl.flow(problem, "rate"), brute_force(problem)
    if best:
        assert found.throughput <= best * (1 + 1e-5)
        assert found.bound >= best * (1 - 1e-5)
    if seed in MOVED:
        assert found.throughput == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("name", ["single24", "geo24", "hetero42"])
def test_what_helix_ships_yields_what_it_reports(name):
    problem, of = course.helix_problem(name), course.helix_cluster(name)
    stages = tuple(Stage(range(a - 1, e), (v,)) for v, (a, e) in enumerate(of.shipped))
    ways = tuple(Routing(problem, [Held(s, 1) for s in stages], full=True).ways(0.0, NEVER))
    flow = Flow(
        problem=problem,
        status="feasible",
        stages=stages,
        in_flight=(1,) * len(stages),
        ways=ways,
        throughput=None,
        bound=None,
        seconds=0.0,
        memory_for=1,
    )
    assert pl.evaluate(problem, flow).throughput == pytest.approx(of.reported, rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least", "status"),
    [
        ("single24", 2045.641047, "optimal"),
        ("geo24", 1754.38189, "optimal"),
        pytest.param("hetero42", 5977.7, "feasible", marks=pytest.mark.nightly),
    ],
)
def test_helix_is_surpassed_within_a_minute(name, least, status):
    of, found = (
        course.helix_cluster(name),
        course.helix_flow(name, stop=lambda progress: progress.nodes >= 1000),
    )
    assert found.throughput > 1.4 * of.reported
    assert found.throughput == pytest.approx(least, rel=1e-4)
    assert found.throughput >= least * (1 - 1e-7)
    assert found.status == status
    assert found.gap < 0.013
    assert pl.evaluate(found.problem, found).throughput == pytest.approx(found.throughput, rel=1e-9)
    values = [value for _, value, _ in found.details["progress"]]
    bounds = [bound for *_, bound in found.details["progress"]]
    assert values == sorted(values)
    assert bounds == sorted(bounds, reverse=True)


@pytest.fixture
def small():
    """One fast GPU and two slow ones: a fast way of two stages, a slow one beside it."""
    model = pl.Model("four layers", 4, 1000, 4000, 1.0)
    cluster = pl.Cluster.from_counts({"A": 1, "B": 2}, 80, 100)
    costs = pl.LayerTimes({"A": 1.0, "B": 3.0})
    return pl.Problem(cluster, model, pl.Workload(100, 1), costs, name="small")


def test_an_answer_says_what_goes_where(small):
    best = pl.flow(small)
    assert best.throughput == pytest.approx(41_666 + 2 / 3)
    assert all(math.isclose(sum(next_.values()), 1) for next_ in best.shares.values())
    assert best.links[-1, 0] + best.links[-1, 1] == pytest.approx(best.throughput)
    frame = best.to_frame()
    assert frame["carried_tokens_per_s"].max() == pytest.approx(33_333 + 1 / 3)
    assert json.loads(json.dumps(best.to_dict()))["stages"][0]["first_layer"] == 1
    assert best.evaluation.to_frame()["busy"].max() == pytest.approx(1)


@pytest.mark.parametrize("seed", [17, 18, *range(17)])
def test_parts_side_by_side_carry_what_one_crossing_allows(seed):
    """Part 0 has the first layers, its last `leave` stages side by side; `enter` stages of each other part follow."""
    rng = np.random.default_rng(seed)
    count, held, ms = rng.integers(1, 5, 3), rng.integers(3, 7, 3), rng.integers(1, 5, 3)
    part, between = np.repeat(np.arange(3), count), float(rng.choice([1_000, 3_000, 9_000]))
    links = np.where(part[:, None] == part, 1e6, between) * (1 - np.eye(len(part)))
    gpus = [pl.GPU(f"T{k}", float(held[k])) for k in part]
    times = pl.LayerTimes({f"T{k}": float(ms[k]) for k in range(3)})
    model = pl.Model("random", 9, 1000, 4000, 1.0, bytes_per_element=2)
    cluster = pl.Cluster(gpus, links * LEAST_MBYTE * 0.2 / 100)
    problem = pl.Problem(cluster, model, pl.Workload(100, 1), times)

    def rate(k, beside, layers):
        """The greatest at which the stages of a part hold so many layers."""

        def longest(t):
            return min(held[k], int(1e5 / (ms[k] * t) + 1e-9))

        rates = [1e5 / (ms[k] * n) for n in range(1, held[k] + 1)]
        enough = [
            t for t in rates if (count[k] - beside) * longest(t) + longest(t / beside) >= layers
        ]
        return max(enough, default=0.0)

    sides = itertools.product(range(1, count[0] + 1), range(1, min(count[1:]) + 1), range(1, 9))
    best = max(
        min(rate(0, x, m), sum(min(rate(k, e, 9 - m), x * e * between) for k in (1, 2)))
        for x, e, m in sides
    )
    of = stages_of(problem, True, NEVER)
    blocks = Blocks(instance=of.instance, capacities=of.at(0), within=1e5, deadline=NEVER)
    routing = Routing(problem, [Held(stage, 1) for stage in fanned(blocks, 0)], full=True)
    assert total(routing.ways(0.0, NEVER)) >= best * (1 - 1e-6)


def two_sites(mbytes):
    """Two GPUs at each of two sites, each with memory for one of three layers."""
    near = np.kron(np.eye(2), np.full((2, 2), 1.0))
    links = np.where(near > 0, 100.0, mbytes / 1000) * (1 - np.eye(4))
    cluster = pl.Cluster([pl.GPU("A", 1.5, usd_per_hour=1.0)] * 4, links)
    model = pl.Model("three layers", 3, 1000, 4000, 1.0)
    return pl.Problem(cluster, model, pl.Workload(100, 1), pl.LayerTimes({"A": 1.0}))


def with_ways(flow, *ways, **changed):
    return dataclasses.replace(flow, ways=tuple(Way(*way) for way in ways), **changed)


def test_the_evaluator_refuses_what_is_no_flow(small):
    best = pl.flow(small)
    one, two = (next(w for w in best.ways if len(w.stages) == n) for n in (1, 2))
    twice = tuple(dataclasses.replace(stage, gpus=(0,)) for stage in best.stages)
    slow = pl.Cluster.from_counts({"A": 1, "B": 2}, 80, 0.02)  # 10,000 tokens/s
    slow = dataclasses.replace(small, cluster=slow)
    for problem, flow, message in [
        (small, with_ways(best, (two.stages, 50_000)), "carries 50000 tokens/s, more than 33333"),
        (small, with_ways(best, (two.stages[:1], 1)), "way 1 does not pass every layer once"),
        (small, dataclasses.replace(best, in_flight=(1, 1, 1)), r"keeps .* in flight, more than 1"),
        (small, dataclasses.replace(best, stages=twice), "GPU 0 is used more than once"),
        (slow, with_ways(best, one, two, memory_for=1), r"link .* more than 10000"),
    ]:
        with pytest.raises(pl.errors.InvalidPlacement, match=message):
            pl.evaluate(problem, flow)


def test_stages_among_which_no_way_holds_all_layers_carry_nothing(small):
    for layers in (range(1, 4), range(3)):  # the first is missing, or the last
        held = [Held(Stage(layers, (0,)), 1)]
        assert greatest_flow(small, held) == []
        assert Routing(small, held, full=True).ways(0.0, NEVER) == []


@pytest.mark.slow
def test_what_ends_early_keeps_what_it_has():
    problem, stop = course.helix_problem("geo24"), threading.Event()
    stop.set()
    for options, by in (
        ({"stop": stop}, "stop"),
        ({"time_limit": 0}, "time limit"),
        ({"gap": 1.5}, "gap limit"),
    ):
        found = pl.flow(problem, "rate", **options)
        assert (found.status, found.stopped_by) == ("feasible", by)
        assert pl.evaluate(problem, found).throughput == pytest.approx(found.throughput)
    assert found.gap <= 1.5


@pytest.mark.parametrize(
    ("problem", "objective", "message"),
    [
        (pl.load_case("tiny"), "rate", "links have a time"),
        (pl.load_case("tiny"), "latency", "'throughput' or 'rate'"),
        (two_sites(20), "rate", "training"),
    ],
)
def test_what_has_no_flow_is_refused(problem, objective, message):
    if message == "training":
        problem = dataclasses.replace(problem, workload=pl.Workload(100, 1, "training"))
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.flow(problem, objective)


def test_no_flow_is_above_what_the_gpus_of_a_deployment_let_pass():
    """It is told where links hold a deployment back, and a flow is better."""
    slow = two_sites(20)
    several, best = pl.deploy(slow), pl.flow(slow)
    assert several.throughput * 1.1 < best.throughput <= several.details["gpus_alone"]
    assert "pl.flow" in several.sentence
    assert "gpus_alone" not in pl.deploy(two_sites(10_000)).details
