"""Several pipelines on one cluster: `deploy` against every division of small clusters, its bounds, stops and errors."""

import dataclasses
import json
import math
import threading

import node_oracle
import numpy as np
import pytest
from test_objectives import priced, small

import oracle
import pipelab as pl
from pipelab.column_generation import deploy_by_column_generation
from pipelab.engine.deadline import NEVER, Ended
from pipelab.engine.deployments import column_generation, deploying, offers
from pipelab.engine.deployments.listing import Listing
from pipelab.engine.deployments.offers import first_offers
from pipelab.writeup.linear_rates import with_link_units


def best_by_gpus(problem, batches):
    """The rate of the best pipeline on every set of GPUs, as a list by bit mask; 0 where none fits."""
    best = [0.0] * (1 << len(problem.cluster))
    for batch in batches:
        load = dataclasses.replace(problem.workload, batch_size=batch)
        for rate, used, _ in oracle.placements(dataclasses.replace(problem, workload=load)):
            mask = sum(1 << g for g in used)
            best[mask] = max(best[mask], rate)
    return best


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


def check(problem, deployment, truth):
    """Proven, as good as the truth, and valid."""
    if not truth:
        assert deployment.status == "infeasible", deployment
        assert deployment.reason
        assert deployment.pipelines == ()
        return
    assert deployment.status == "optimal", deployment
    assert deployment.throughput == deployment.bound == pytest.approx(truth, rel=1e-9)
    check_valid(problem, deployment)


def check_valid(problem, deployment):
    found = pl.evaluate(problem, deployment)
    assert found.throughput == pytest.approx(deployment.throughput, rel=1e-12)
    gpus = [g for p in deployment.pipelines for r in p.replicas for g in r.gpus]
    assert len(gpus) == len(set(gpus))
    rates = [p.throughput for p in deployment.pipelines]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(60))
def test_equal_to_every_division(seed):
    """Unequal links, twins, unlike layers, mixed stages, tables with gaps."""
    problem = small(seed, gpus=5) if seed % 4 == 3 else small(seed)
    check(problem, pl.deploy(problem), every_division(problem)[-1])


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(14))
def test_equal_to_every_division_in_nodes(seed):
    """Identical nodes, in which stages may cut their layers."""
    problem = node_oracle.random_problem(seed, gpus=5, layers=4)
    check(problem, pl.deploy(problem), every_division(problem)[-1])


def three_nodes_of_three():
    """A layer that two GPUs of one node hold together, cut among them, and nothing else does."""
    gpus = tuple(pl.GPU("L4", 2.0, 1.0, f"node {i // 3}", 300.0) for i in range(9))
    model = dataclasses.replace(pl.load_model("Llama-3-8B"), layers=1)
    load, fast = pl.Workload(512, 1, "decode"), np.full((9, 9), 100.0)
    return pl.Problem(
        pl.Cluster(gpus, fast),
        model,
        load,
        pl.Roofline(),
        max_gpus_per_stage=2,
        same_type_stages=False,
    )


def test_stages_that_nodes_have_no_room_for_are_not_counted():
    """Four pairs by numbers, three in nodes: proven where nodes are kept apart."""
    problem = three_nodes_of_three()
    pair = pl.evaluate(problem, pl.Placement.of([(1, (0, 1))])).throughput
    found = pl.deploy(problem)
    assert (found.status, found.count) == ("optimal", 3)
    assert found.throughput == pytest.approx(3 * pair)
    check_valid(problem, found)
    assert pl.deploy(problem, 2.5 * pair).count == 3
    more = pl.deploy(problem, 3.5 * pair)
    assert more.status == "infeasible"
    assert "2 such clusters would serve it" in more.reason


def test_stages_that_nodes_have_no_room_for_leave_a_gap_where_nodes_cannot_be_kept_apart(
    monkeypatch,
):
    def together(problems, deadline, apart=False, limits=None):
        if apart:
            raise pl.errors.TooLarge("too many compositions", {})
        return offers.first_offers(problems, deadline)

    monkeypatch.setattr(deploying, "first_offers", together)
    problem = three_nodes_of_three()
    pair = pl.evaluate(problem, pl.Placement.of([(1, (0, 1))])).throughput
    found = pl.deploy(problem)
    assert (found.status, found.count) == ("feasible", 3)
    assert found.bound >= 4 * pair * (1 - 1e-9)
    assert "packed into nodes" in found.sentence
    short = pl.deploy(problem, 3.5 * pair)
    assert short.status == "unknown"
    assert short.pipelines == ()


@pytest.mark.quick(7)
@pytest.mark.parametrize("seed", range(12))
def test_equal_to_every_division_over_families(seed):
    """Identical nodes, and no link that binds: only numbers count."""
    problem = node_oracle.random_problem(
        seed, gpus=5, layers=3, costs="roofline", network="uniform"
    )
    cluster = pl.Cluster(problem.cluster.gpus, np.full((len(problem.cluster),) * 2, 1e5))
    problem = dataclasses.replace(problem, cluster=cluster)
    check(problem, pl.deploy(problem), every_division(problem)[-1])


@pytest.mark.parametrize("few", [0, 10**9])
@pytest.mark.parametrize("seed", range(16))
def test_labels_and_tables_find_the_same(seed, few, monkeypatch):
    """Each alone; every bound on the way is valid."""
    monkeypatch.setattr(column_generation, "_FEW_MIXES", few)
    monkeypatch.setattr(column_generation, "_SMALL_SHARE", -1.0)
    problem, seen = small(5000 + seed) if seed % 2 else unbound(seed), []
    truth = every_division(problem)[-1]
    check(problem, pl.deploy(problem, on_progress=seen.append), truth)
    assert all(moment.bound >= truth * (1 - 1e-9) for moment in seen)


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(30))
def test_every_pipeline_has_the_batch_that_suits_it(seed):
    problem = small(2000 + seed, batch_split="even")
    batches = [1, 4, 16]
    found = pl.deploy(problem, batches=batches)
    truth = every_division(problem, batches)[-1]
    if truth:
        assert {p.workload.batch_size for p in found.pipelines} <= set(batches)
    check(problem, found, truth)


def dollars(problem, mask):
    return sum(g.usd_per_hour for i, g in enumerate(problem.cluster.gpus) if mask >> i & 1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(30))
def test_the_cheapest_deployment_for_a_load(seed):
    problem = priced(small(seed), seed)
    total = every_division(problem)
    if not total[-1]:
        assert pl.deploy(problem, 1.0).status == "infeasible"
        return
    for share in (0.3, 0.8, 1.0):
        load = share * total[-1]
        truth = min(dollars(problem, m) for m, t in enumerate(total) if t >= load * (1 - 1e-12))
        found = pl.deploy(problem, load)
        assert found.status == "optimal", (found, truth)
        assert found.usd_per_hour == pytest.approx(truth, rel=1e-9)
        assert found.bound == pytest.approx(truth, rel=1e-9)
        assert found.throughput >= load * (1 - 1e-9)
        check_valid(problem, found)
    above = pl.deploy(problem, 1.01 * total[-1])
    assert above.status == "infeasible"
    assert f"{total[-1]:.7g}" in above.reason
    assert "2 such clusters would serve it" in above.reason


@pytest.mark.parametrize("seed", range(30))
def test_dual_prices_bound_every_pipeline(seed):
    """At any prices, zero and tiny ones included, no placement of a rate costs less than `Offer.least` says."""
    problem = small(3000 + seed)
    (offer,) = first_offers([problem], NEVER) or [None]
    if offer is None or offer.merged or not len(offer.stage_rates):
        return
    classes, rng = offer.table.classes, np.random.default_rng(seed)
    price = rng.choice([0.0, 1e-9, 0.3, 1 / 3, 7.0], len(classes))
    asked, least = offer.asked[0], offer.least(price).price
    for rate, used, _ in oracle.placements(problem):
        paid = sum(price[classes.of[g]] for g in used)
        reached = least[asked <= rate * (1 + 1e-9)]
        assert paid >= reached.max(initial=0.0) - 1e-9


def unbound(seed):
    """Identical layers and no link that binds; in every second problem more layers make a GPU faster."""
    problem = oracle.random_problem(
        seed, layers=6, twins=True, batch_split="even", link_units="tokens"
    )
    rng, costs = np.random.default_rng(seed), problem.costs
    slope = float(rng.uniform(5, 30)) * (1 if seed % 2 else -1)
    faster = {
        kind: dataclasses.replace(c, per_layer=slope, constant=250.0)
        for kind, c in costs.coefficients.items()
    }
    costs = dataclasses.replace(costs, coefficients=faster)
    gpus, most = problem.cluster.gpus, problem.max_gpus_per_stage
    if seed % 4 < 2:  # more stages of one kind
        gpus, most = gpus[:1] * 5, 1
    cluster = pl.Cluster(gpus, np.full((len(gpus),) * 2, 1e6))
    return dataclasses.replace(problem, cluster=cluster, costs=costs, max_gpus_per_stage=most)


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("seed", range(22))
def test_every_pipeline_is_listed_or_one_that_beats_it(seed, tables):
    """Where what a stage can hold it can hold in part, and where it cannot."""
    problem = unbound(seed)
    offers = [offer for offer in first_offers([problem], NEVER) if len(offer.stage_rates)]
    every = list(oracle.placements(problem))
    if not offers:
        assert every == []
        return
    classes = offers[0].table.classes
    demand = column_generation.Demand(classes.count, 0.0, np.zeros(len(classes)))
    most = column_generation.Generation(offers, demand, NEVER)
    free = column_generation.Prices(np.zeros(len(classes)), {"": 1.0}, np.inf, 1.0)
    listed, complete = most.listed(free, np.inf, tables, NEVER)
    assert complete
    of = {
        (rate, tuple(np.bincount(classes.of[list(used)], minlength=len(classes))))
        for rate, used, _ in every
    }
    for rate, mix in of:
        assert any(
            c.rate >= rate * (1 - 1e-9) and all(n <= m for n, m in zip(c.gpus, mix, strict=True))
            for c in listed
        )
    for column in listed:
        assert any(mix == column.gpus and rate >= column.rate * (1 - 1e-9) for rate, mix in of)


@pytest.mark.parametrize("seed", [15, 19, 26, 43, 50, 71, 83, 87])
def test_what_is_listed_within_a_slack_is_all_that_is_within(seed):
    """At prices of GPUs, links and the GPUs there are counted; the shortest path, which leaves both out, is cheaper."""
    problem = unbound(seed)
    (offer,) = first_offers([problem], NEVER)
    classes = offer.table.classes
    cost = np.random.default_rng(seed).uniform(10.0, 200.0, len(classes))
    profit = {
        (rate, used): rate - sum(cost[classes.of[g]] for g in used)
        for rate, used, _ in oracle.placements(problem)
    }
    for slack in (-0.5 * max(profit.values()), 0.0, 30.0, 100.0):
        listing = Listing(offer, cost, slack, NEVER)
        found = max((c.rate - cost @ c.gpus for c in listing.pipelines()), default=-np.inf)
        assert listing.complete
        if max(profit.values()) >= -slack:
            assert found == pytest.approx(max(profit.values()), rel=1e-9)
        else:
            assert found == -np.inf
    relaxed = (offer.asked[1] - offer.least(cost).price).max()
    assert relaxed >= max(profit.values()) * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_pipeline_of_a_rate_is_found(seed):
    """By the stage-flow program, at random prices; a path leaves out how many GPUs there are, and is no dearer."""
    problem = small(5000 + seed)
    offers = first_offers([problem], NEVER, apart=True)
    if not offers or not len(offers[0].stage_rates):
        return
    (offer,), of = offers, offers[0].table.classes.of
    cost = np.random.default_rng(seed).uniform(1.0, 9.0, len(offer.table.classes))
    every = [(rate, sum(cost[of[g]] for g in used)) for rate, used, _ in oracle.placements(problem)]
    price = offer.least(cost).price
    for rate in np.random.default_rng(seed).choice(offer.rates, 3):
        least = min((paid for own, paid in every if own >= rate * (1 - 1e-9)), default=math.inf)
        stages, bound = offer.cheapest(rate, cost, NEVER)
        assert bound == pytest.approx(least, rel=1e-6)
        assert (stages is None) == math.isinf(least)
        if stages is not None:
            assert sum(cost @ np.array(gpus) for _, gpus in stages) == pytest.approx(
                least, rel=1e-6
            )
        assert price[offer.asked[0].searchsorted(rate * (1 - 1e-9))] <= least * (1 + 1e-9)


@pytest.mark.quick(7)
@pytest.mark.parametrize("seed", range(20))
def test_no_round_has_a_bound_below_the_truth(seed):
    problem = small(4000 + seed)
    truth = every_division(problem)[-1]
    seen = []
    found = pl.deploy(problem, on_progress=seen.append)
    assert len(seen) >= (truth > 0)
    for moment in seen:
        assert moment.bound >= truth * (1 - 1e-9)
        assert (moment.incumbent or 0.0) <= truth * (1 + 1e-9)
    assert found.details["progress"] == tuple(seen)


@pytest.mark.slow
def test_small_classes_leave_little_open_without_a_list():
    """32 GPUs of 8 types: 10 % were open before a pipeline kept to the 4 GPUs of each type."""
    memory = pl.hardware.gpus()["memory_gb"]
    types = ["A100-SXM-80", "A100-SXM-40", "H100-SXM", "L4", "T4", "V100-SXM-32", "L40S", "A10"]
    cluster = pl.Cluster.from_counts(dict.fromkeys(types, 4), memory.to_dict(), 12.5)
    load = pl.Workload(1000, 8, "decode")
    problem = pl.Problem(
        cluster,
        pl.load_model("Llama-3-70B"),
        load,
        pl.Roofline(),
        max_gpus_per_stage=2,
        same_type_stages=False,
    )
    found = pl.deploy(problem, gap=0.01)
    assert found.gap <= 0.02
    check_valid(problem, found)


@pytest.mark.slow
def test_progress_goes_on_while_pipelines_are_listed(monkeypatch):
    monkeypatch.setattr(column_generation, "_SILENT_SECONDS", 0.0)
    problem, seen = heterogeneous((4, 8, 12), "Llama-3-70B"), []
    found = pl.deploy(problem, on_progress=seen.append)
    assert found.status == "optimal"
    of_last_round = [moment for moment in seen if moment.nodes == found.size["rounds"]]
    assert len(of_last_round) > 10
    assert [m.seconds for m in seen] == sorted(m.seconds for m in seen)


@pytest.mark.slow
def test_what_was_listed_at_an_early_end_counts(monkeypatch):
    """An end in the middle of the list: its pipelines are better than those of the rounds."""
    problem, stop = heterogeneous((4, 8, 12), "Llama-3-70B", phase="decode"), threading.Event()
    before, taken, take = [], [], column_generation.Generation.take

    def taken_until(self, column):
        taken.append(column)
        if column.at >= 0 and not before:
            before.append(self.value)
        if sum(c.at >= 0 for c in taken) == 300:
            stop.set()
        return take(self, column)

    monkeypatch.setattr(column_generation.Generation, "take", taken_until)
    monkeypatch.setattr(deploying, "_FAR", np.inf)  # without the best single pipeline
    found = pl.deploy(problem, stop=stop)
    assert found.stopped_by == "stop"
    assert found.throughput > before[0] * (1 + 1e-9)
    assert found.bound is not None
    check_valid(problem, found)


def identical_by_type(seed):
    """GPUs that are identical type by type, mixed stages, links that do not bind."""
    rng = np.random.default_rng(seed)
    counts = {"A100": int(rng.integers(1, 4)), "T4": int(rng.integers(1, 5))}
    memory = {"A100": float(rng.choice([3, 5, 8])), "T4": float(rng.choice([2, 3, 4]))}
    cluster = pl.Cluster.from_counts(counts, memory, 1e6)
    tiny = pl.load_case("tiny", max_gpus_per_stage=int(rng.integers(1, 3)))
    model = dataclasses.replace(tiny.model, layers=6)
    return with_link_units(dataclasses.replace(tiny, cluster=cluster, model=model), "tokens")


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(24))
def test_equal_to_the_definition(seed):
    """As good as textbook column generation; its bound is what dual prices say of every deployment."""
    problem = identical_by_type(seed)
    defined, found = deploy_by_column_generation(problem), pl.deploy(problem)
    if not defined.placements:
        assert (found.status, defined.bound) == ("infeasible", 0.0)
        return
    total = sum(pl.evaluate(problem, placement).throughput for placement in defined.placements)
    gpus = [g for placement in defined.placements for g in placement.gpus]
    assert len(gpus) == len(set(gpus))
    assert total == pytest.approx(defined.throughput, rel=1e-9)
    assert found.status == "optimal"
    assert total * (1 - 1e-9) <= found.throughput <= defined.bound * (1 + 1e-7)
    assert found.throughput == pytest.approx(every_division(problem)[-1], rel=1e-9)
    (offer,) = first_offers([problem], NEVER)
    demand = column_generation.Demand(offer.table.classes.count, 0.0, np.zeros(2))
    generated = column_generation.Generation([offer], demand, NEVER)
    generated.generate()
    assert generated.bound >= found.throughput * (1 - 1e-9)
    if (
        len(generated.pipelines) == len(generated.columns) and generated.open > 0
    ):  # its pipelines kept to the GPUs there are
        assert generated.bound == pytest.approx(defined.bound, rel=1e-7)


def test_the_definition_refuses_links_that_bind():
    cluster = pl.Cluster.from_counts({"T4": 6}, {"T4": 3}, 1e-5)
    problem = dataclasses.replace(identical_by_type(0), cluster=cluster, max_gpus_per_stage=1)
    with pytest.raises(pl.errors.NotApplicable, match="links that do not bind"):
        deploy_by_column_generation(problem)


# Stops, errors, files


def heterogeneous(counts=(2, 4, 4), model="Llama-3-8B", **workload):
    memory = {"A100-SXM-40": 40.0, "L4": 24.0, "T4": 16.0}
    price = {"A100-SXM-40": 1.5, "L4": 0.7, "T4": 0.35}
    cluster = pl.Cluster.from_counts(
        dict(zip(memory, counts, strict=True)), memory, 12.5, usd_per_hour=price
    )
    load = pl.Workload(**({"sequence_length": 2048, "batch_size": 16} | workload))
    return pl.Problem(cluster, pl.load_model(model), load, pl.Roofline(), name="mix")


def short_answers():
    """Of one type each token comes soon, and of the other the first does not."""
    return heterogeneous(
        (1, 3, 0), sequence_length=2000, batch_size=8, phase="mixed", output_tokens=200
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1])
def test_a_time_limit_keeps_a_valid_deployment_and_a_valid_bound(seconds):
    problem = heterogeneous((4, 8, 12))
    best = pl.deploy(problem).throughput
    found = pl.deploy(problem, time_limit=seconds)
    if found.pipelines:
        check_valid(problem, found)
        assert found.throughput <= best * (1 + 1e-9)
    assert found.bound is None or found.bound >= best * (1 - 1e-9)
    assert found.status == "optimal" or found.stopped_by == "time limit"


def test_a_stop_ends_it_and_says_so():
    stop = threading.Event()
    stop.set()
    found = pl.deploy(heterogeneous(), stop=stop)
    assert found.stopped_by == "stop"
    assert found.status in ("feasible", "unknown")
    assert "stop" in found.sentence


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tpot_ms": 11}, "after 1 round the search had found no pipeline"),
        ({"tpot_ms": 11, "single": True}, "after 1 round the search had found no pipeline"),
        ({"tpot_ms": 11, "pools": True}, "pipelines, none of them for decode"),
        ({"tpot_ms": 30, "ttft_ms": 600, "pools": True}, "pipelines, and no deployment of them"),
    ],
)
def test_a_stop_without_a_deployment_says_how_far_it_came(options, said):
    stop = threading.Event()
    found = pl.deploy(short_answers(), stop=stop, on_progress=lambda _: stop.set(), **options)
    assert (found.status, found.stopped_by) == ("unknown", "stop")
    assert found.reason.endswith(said)


def test_a_stop_below_a_load_says_what_the_best_found_serves(monkeypatch):
    def stopped(self):
        raise Ended("stop")

    best = pl.deploy(heterogeneous()).throughput
    monkeypatch.setattr(column_generation.Generation, "generate", stopped)
    found = pl.deploy(heterogeneous(), 2 * best)
    assert (found.status, found.stopped_by) == ("unknown", "stop")
    begun = "the best deployment found serves "
    assert found.reason.startswith(begun)
    served = float(found.reason.removeprefix(begun).split()[0])
    assert 0 < served < found.at_least


@pytest.mark.parametrize("listed", [False, True])
def test_a_stop_before_the_first_round_says_so(listed, monkeypatch):
    stop = threading.Event()

    def stopped(*given, **options):
        made = offers.first_offers(*given, **options)
        stop.set()
        if not listed:
            raise Ended("stop")
        return made

    monkeypatch.setattr(deploying, "first_offers", stopped)
    said = "the first round of the search was not over"
    reason = said if listed else "the rates of stages were still being listed"
    assert pl.deploy(short_answers(), stop=stop, tpot_ms=11).reason == reason


@pytest.mark.slow
def test_a_gap_is_kept_and_said():
    problem = heterogeneous((4, 8, 12), "Llama-3-70B")
    found = pl.deploy(problem, gap=0.2)
    assert found.gap <= 0.2
    assert found.bound >= pl.deploy(problem).throughput * (1 - 1e-9)


def test_where_only_one_pipeline_fits_it_is_the_best_one():
    problem = heterogeneous((3, 2, 2), "Llama-3-70B", batch_size=1)
    one, several = pl.solve(problem), pl.deploy(problem)
    assert several.count == 1
    assert several.throughput == pytest.approx(one.throughput, rel=1e-9)


@pytest.mark.nightly
def test_a_thousand_gpus_of_eight_types_within_one_percent():
    memory = pl.hardware.gpus()["memory_gb"]
    types = ["A100-SXM-80", "A100-SXM-40", "H100-SXM", "L4", "T4", "V100-SXM-32", "L40S", "A10"]
    cluster = pl.Cluster.from_counts(dict.fromkeys(types, 125), memory.to_dict(), 12.5)
    load = pl.Workload(1000, 1)
    problem = pl.Problem(cluster, pl.load_model("Llama-3-70B"), load, pl.Roofline())
    found = pl.deploy(problem, gap=0.01, time_limit=30)
    assert found.gap <= 0.01
    check_valid(problem, found)


@pytest.mark.slow
def test_links_that_bind_leave_little_open():
    """320 GPUs of 8 types, each pair of types with links of their own: a bound without links is 58 % off."""
    rng = np.random.default_rng(0)
    base = list(pl.writeup.load_coefficients().coefficients.values())
    rates = {
        f"type {i}": dataclasses.replace(
            base[i % len(base)], constant=base[i % len(base)].constant * c
        )
        for i, c in enumerate(rng.uniform(0.7, 1.3, 8))
    }
    memory = {name: float(rng.choice([16, 24, 40, 48, 80])) for name in rates}
    links = {
        (a, b): float(rng.choice([10, 25, 50, 100, 200])) for a in rates for b in rates if a <= b
    }
    cluster = pl.Cluster.from_counts(dict.fromkeys(rates, 40), memory, links)
    model, load = pl.Model("large", 126, 8192, 28672, 2.5), pl.Workload(512, 32)
    costs = pl.writeup.LinearThroughput(rates, link_units="transfers")
    problem = pl.Problem(cluster, model, load, costs, 8, same_type_stages=False)
    found = pl.deploy(problem, gap=0.02, time_limit=30)
    assert found.gap <= 0.02
    check_valid(problem, found)


@pytest.mark.slow
def test_gpus_of_one_pipeline_are_counted_in_the_bound():
    """A bound by paths alone is 910 tokens/s: these want more A100 than there are."""
    problem = pl.load_case("medium", max_gpus_per_stage=2)
    found = pl.deploy(problem)
    assert found.bound <= 860
    check_valid(problem, found)


def test_what_nothing_can_serve_says_why():
    found = pl.deploy(heterogeneous((0, 1, 1), "Llama-3-70B"))
    assert found.status == "infeasible"
    assert "layers" in found.reason
    assert found.pipelines == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at_least": -1}, "at_least"),
        ({"at_least": math.nan}, "at_least"),
        ({"batches": []}, "expected batch sizes"),
        ({"batches": [0]}, "batches"),
        ({"gap": -0.1}, "gap"),
        ({"time_limit": "soon"}, "time_limit"),
        ({"stop": True}, "stop"),
        ({"on_progress": 3}, "on_progress"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.deploy(heterogeneous(), **arguments)


def test_a_load_needs_prices():
    problem = dataclasses.replace(
        heterogeneous(), cluster=pl.Cluster.from_counts({"L4": 2}, 24, 12.5)
    )
    with pytest.raises(pl.errors.InvalidValue, match="usd_per_hour"):
        pl.deploy(problem, 100.0)


def test_the_evaluator_refuses_a_gpu_in_two_pipelines():
    problem = heterogeneous()
    found = pl.deploy(problem)
    first = found.pipelines[0]
    twice = dataclasses.replace(first, replicas=first.replicas + first.replicas[:1])
    with pytest.raises(pl.errors.InvalidPlacement, match="is used by 2 pipelines"):
        pl.evaluate(problem, dataclasses.replace(found, pipelines=(twice,)))


@pytest.mark.slow
def test_saved_and_drawn(tmp_path):
    problem = heterogeneous()
    found = pl.deploy(problem)
    document = json.loads(pl.save(found, tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert document["throughput_tokens_per_s"] == found.throughput
    assert sum(len(p["replicas"]) for p in document["pipelines"]) == found.count
    with pytest.raises(pl.errors.InvalidValue, match=r"expected a name that ends in \.json"):
        pl.save(found, tmp_path / "plan.csv")
    figure = pl.plot(found)
    assert f"{found.count} pipelines, proven best" in figure.layout.title.text
    assert len(figure.data[0].y) == sum(len(p.placement) for p in found.pipelines)
    # A wide stage has its GPU's name at its own middle; narrow equal ones have one name together.
    bars, names = figure.data
    for x, y in zip(names.x, names.y, strict=True):
        middles = [
            b + n / 2 for b, n, row in zip(bars.base, bars.x, bars.y, strict=True) if row == y
        ]
        assert min(abs(x - middle) for middle in middles) < 1e-9
    none = pl.deploy(heterogeneous((0, 1, 1), "Llama-3-70B"))
    with pytest.raises(pl.errors.InvalidValue, match="expected a deployment with a pipeline"):
        pl.save(none, tmp_path / "none.json")
    with pytest.raises(
        pl.errors.InvalidValue, match=r"one of its pipelines: x\.pipelines\[0\]\.placement"
    ):
        pl.timeline_of(found.problem, found)


def test_prompts_and_answers_count_in_requests_and_in_dollars():
    """500 prompt tokens and 100 answer tokens a request: 600 tokens are paid for 100 written."""
    problem = heterogeneous(sequence_length=500, phase="mixed", output_tokens=100)
    found = pl.deploy(problem, 1.0)
    assert found.requests_per_s == pytest.approx(found.throughput / 100)
    tokens = found.requests_per_s * 600 * 3600
    assert found.usd_per_million_tokens == pytest.approx(found.usd_per_hour / tokens * 1e6)


@pytest.mark.parametrize("milliseconds", [1e-16, 1e-9])
def test_rates_beyond_what_a_solver_takes_for_infinite(milliseconds):
    tiny = pl.load_case("tiny", link_units="tokens")
    table = {name: {(1, b): milliseconds for b in (1, 16)} for name in ("A100", "V100")}
    costs = pl.hardware.Measured(table, tiny.costs, per_layer=True)
    found = pl.deploy(dataclasses.replace(tiny, costs=costs))
    assert (found.status, found.count) == ("optimal", 4)
    assert found.throughput == pytest.approx(32768 / milliseconds * 1000)
