"""Requests under limits: `deploy` and its definition against every deployment, by formulas of their own."""

import dataclasses
import math
from functools import cache
from itertools import combinations, count, islice, product

import node_oracle
import numpy as np
import pytest
from small_problems import three_types, tight

import pipelab as pl
from pipelab.costs import filled
from pipelab.engine.deadline import NEVER
from pipelab.engine.deployments import closing, pricing, timing
from pipelab.engine.deployments.column_generation import Generation
from pipelab.engine.deployments.master_program import DeploymentGoal
from pipelab.engine.deployments.offers import first_offers
from pipelab.engine.timeline.placement_timelines import lane_costs
from pipelab.engine.timeline.timeline import simulate_in_flight
from pipelab.requests import (
    Limits,
    best_deployment,
    best_service,
    for_phase,
    request_tokens,
    times,
)


class Truth:
    """Every deployment of a small problem, from what the cost model says of stages and links alone."""

    def __init__(self, problem, batches, phases):
        self.problem, self.batches, self.phases = problem, batches, phases
        self.load, self.with_load = cache(self._load), cache(self._with_load)
        self.stage_of, self.link_of = cache(self._stage), cache(self._link)
        self.speed = problem.cluster.bandwidth_matrix().tolist()
        self.late = problem.cluster.latency_matrix().tolist()

    def _load(self, phase, batch, number, at):
        own = self.problem.workload
        return pl.Workload(
            own.sequence_length, batch, phase, own.output_tokens, number,
            timed_at=None if phase == "prefill" else at,
        )  # fmt: skip

    def _stage(self, phase, batch, number, at, kinds, span):
        """Interval and seconds of a pass; None where the stage does not fit."""
        p, load = self.problem, self.load(phase, batch, number, at)
        cost = p.costs.stage(p.model, load, kinds, range(*span), p.batch_split)
        if not cost.throughput or any(
            need > gpu.memory_gb * (1 + 1e-9)
            for need, gpu in zip(cost.memory_gb, kinds, strict=True)
        ):
            return None
        interval = load.tokens / cost.throughput
        return interval, interval if cost.pass_seconds is None else cost.pass_seconds

    def _with_load(self, load):
        return dataclasses.replace(self.problem, workload=load)

    def _link(self, load, speed):
        """Seconds that a stage's tensor takes a link of this speed."""
        p = self.with_load(load)
        return load.tokens / p.costs.link_throughput(p, speed)

    def sent(self, load, gigabytes, i, j):
        """Seconds of a message; of a stage's whole tensor if its size is not given."""
        speed, late = self.speed[i][j], self.late[i][j]
        if gigabytes is None:
            return self.link_of(load, speed) + late / 1000
        return getattr(self.problem.costs, "hop_latency_s", 0.0) + gigabytes / speed + late / 1000

    def placements(self, layers):
        p, everyone = self.problem, range(len(self.problem.cluster))

        def after(first, free):
            if first == layers:
                yield []
            for stop in range(first + 1, layers + 1):
                for k in range(1, p.max_gpus_per_stage + 1):
                    for own in combinations(sorted(free), k):
                        if p.same_type_stages and len({p.cluster.gpus[g].type for g in own}) > 1:
                            continue
                        for rest in after(stop, free - set(own)):
                            yield [((first, stop), own), *rest]

        return after(0, set(everyone))

    def times(self, phase, batch, number, at, stages):
        """Interval, traversal, stage by stage the end, in seconds; None where it does not fit."""
        load, gpus = self.load(phase, batch, number, at), self.problem.cluster.gpus
        clock, intervals, ends = 0.0, [], []
        for k, (span, own) in enumerate(stages):
            found = self.stage_of(phase, batch, number, at, tuple(gpus[g] for g in own), span)
            if found is None:
                return None
            if k:
                pairs = [(i, j) for i in stages[k - 1][1] for j in own]
                clock += max(self.sent(load, None, i, j) for i, j in pairs)
                intervals.append(self.link_of(load, min(self.speed[i][j] for i, j in pairs)))
            intervals.append(found[0])
            clock += found[1]
            ends.append(clock)
        return max(intervals), clock, ends

    def serves(self, phase, batch, number, stages):
        """(requests/s, TPOT, TTFT) in s; None where memory does not hold so many."""
        mean = self.times(phase, batch, number, "mean", stages)
        if mean is None:
            return None
        (interval, traversal, ends), load = mean, self.load(phase, batch, number, "mean")
        prompt, answer, model = load.sequence_length, load.output_tokens, self.problem.model
        if phase == "prefill":
            each, arrived = 2 * model.kv_heads * model.head_dim * 2, 0.0
            for (span, own), end in zip(stages, ends, strict=True):
                size = batch * prompt * (span[1] - span[0]) * each / 1e9
                others = range(len(self.problem.cluster))
                ways = [self.sent(load, size, i, j) for i in own for j in others if i != j]
                arrived = max(arrived, end + max(ways, default=0.0))
            return min(batch / interval, number * batch / traversal), 0.0, arrived
        back = 0.0
        if len(stages) > 1:
            pairs = [(i, j) for i in stages[-1][1] for j in stages[0][1]]
            back = max(self.sent(load, 4 * batch / 1e9, i, j) for i, j in pairs)
        tpot = max(traversal + back, number * interval)
        late, whole, _ = self.times(phase, batch, number, "last", stages)
        ttft = math.ceil(answer / batch) * tpot + traversal if phase == "mixed" else 0.0
        rate = number * batch / answer / tpot
        return rate, max(tpot, whole + back, number * late), ttft

    def numbers(self, stages):
        """The numbers in flight that an engine may have in so many stages."""
        costs = self.problem.costs
        allowed = {"one": 1, "dynamic": 1, "by_stages": stages + costs.filling_number}
        return islice(count(1), allowed.get(costs.filling))

    def every(self, most=64):
        """(phase, GPUs, requests/s, TPOT, TTFT) of all pipelines with all batches and numbers in flight that help.

        Where memory holds `most` and all stages have the same times, more than a full pipeline has are of no use; nor
        beyond `most`.
        """
        found = []
        for phase in self.phases:
            for batch in self.batches:
                for stages in self.placements(self.problem.model.layers):
                    used = frozenset(g for _, own in stages for g in own)
                    rates = [0.0]
                    for number in self.numbers(len(stages)):
                        row = self.serves(phase, batch, number, stages)
                        if row is None:
                            break
                        found.append((phase, used, *row))
                        rates.append(row[0])
                        if rates[-1] > rates[-2] * (1 + 1e-12):
                            continue
                        times = [
                            self.times(phase, batch, n, "mean", stages) for n in (number, most)
                        ]
                        if number >= most or times[0] == times[1]:
                            break
        return found

    def kept(self, every, limits):
        """The most requests/s within the limits of a pipeline of each phase and set of GPUs."""
        kept = {}
        for phase, used, own, tpot, ttft in every:
            slack = 1 + 1e-9
            if 1000 * tpot <= limits.tpot_ms * slack and 1000 * ttft <= limits.ttft_ms * slack:
                kept[phase, used] = max(own, kept.get((phase, used), 0.0))
        return kept

    def best(self, every, limits, rate=0.0):
        """The most requests/s, or the least dollars per hour that serve a rate; None if there is none."""
        price = [gpu.usd_per_hour or 0.0 for gpu in self.problem.cluster.gpus]
        kept = self.kept(every, limits)
        best, pools = None, list(self.phases)

        def choose(rest, free, served, used):
            nonlocal best
            least = min(served)
            if least > 0 and least >= rate * (1 - 1e-9):
                value = -sum(price[g] for g in used) if rate else least
                best = value if best is None else max(best, value)
            for k, ((phase, gpus), own) in enumerate(rest):
                if gpus <= free:
                    more = [
                        s + own * (pool == phase) for s, pool in zip(served, pools, strict=True)
                    ]
                    choose(rest[k + 1 :], free - gpus, more, used | gpus)

        everyone = frozenset(range(len(price)))
        choose(list(kept.items()), everyone, [0.0] * len(pools), frozenset())
        return best if best is None or not rate else -best


def drawn(seed, most):
    """A small problem with prices, its batches, its phases, and a cost model in which memory is short."""
    rng = np.random.default_rng([39, seed])
    base = tight(seed, late=bool(seed % 2)) if seed % 3 else node_oracle.random_problem(
        seed, gpus=4, layers=4, costs="roofline"
    )  # fmt: skip
    answer = int(rng.choice([1, 3, 20, 200]))
    phase = str(rng.choice(["mixed", "decode", "prefill"], p=[0.6, 0.3, 0.1]))
    load = pl.Workload(
        int(rng.choice([16, 200, 2000])), 1, "mixed" if phase == "mixed" else phase, answer
    )
    layers = int(rng.integers(1, 4))
    model = dataclasses.replace(
        pl.load_model("Llama-3-8B"), layers=layers, d_model=1024, d_ff=2048, heads=8, kv_heads=4,
        head_dim=128, vocab=int(rng.choice([1000, 64_000])),
    )  # fmt: skip
    gpus = base.cluster.gpus
    types = list(dict.fromkeys(gpu.type for gpu in gpus))
    weights = sum(model.weight_gb(range(i, i + 1)) for i in range(layers)) / layers
    room = {
        t: weights * float(rng.choice([0.8, 1.4, 2.5, 6.0])) / base.costs.memory_share
        for t in types
    }
    more = {t: float(rng.choice([0.0, 0.02, 0.3])) for t in types}
    price = {t: float(rng.integers(20, 400)) / 100 for t in types}
    pool = tuple(
        dataclasses.replace(g, memory_gb=room[g.type] + more[g.type], usd_per_hour=price[g.type])
        for g in gpus
    )
    cluster = dataclasses.replace(base.cluster, gpus=pool)
    pools = bool(phase == "mixed" and rng.random() < 0.5)
    if seed % 10:
        base = dataclasses.replace(base, batch_split="even")
    if base.batch_split == "balanced":  # which takes long
        most //= 6
    base = dataclasses.replace(
        base, cluster=cluster, model=model, workload=load, name=f"requests {seed}"
    )
    problem = smaller(base, most)
    batches = [int(b) for b in rng.choice([1, 2, 5, 16], 2, replace=False)]
    return problem, batches, pools


def smaller(problem, most):
    """With fewer layers, and then fewer GPUs in a stage, until there are no more placements than that."""
    while True:
        every = Truth(problem, [], []).placements(problem.model.layers)
        if len(list(islice(every, most + 1))) <= most:
            return problem
        if problem.model.layers == problem.max_gpus_per_stage == 1:
            return problem
        if problem.model.layers > 1:
            fewer = dataclasses.replace(problem.model, layers=problem.model.layers - 1)
            problem = dataclasses.replace(problem, model=fewer)
        else:
            size = problem.max_gpus_per_stage - 1
            problem = dataclasses.replace(problem, max_gpus_per_stage=size)


def asked(seed, most=60):
    """The problem with limits that bind, and the truth."""
    problem, batches, pools = drawn(seed, most)
    rng = np.random.default_rng([40, seed])
    phases = ("prefill", "decode") if pools else (problem.workload.phase,)
    truth = Truth(problem, batches, phases)
    every = truth.every()
    limits = {}
    for name, column in (("tpot_ms", 3), ("ttft_ms", 4)):
        times = sorted({row[column] for row in every if row[column]})
        if times and rng.random() < 0.8:
            at = times[int(rng.integers(0, len(times)))]
            limits[name] = 1000 * at * float(rng.choice([1.0, 1.05, 0.999]))
    return problem, batches, pools, limits, truth, every


def compare(seed):
    problem, batches, pools, limits, truth, every = asked(seed)
    known = Limits(**limits)
    most = truth.best(every, known)
    options = {"batches": batches, "pools": pools, **limits}
    if not limits and not pools:
        options["ttft_ms"] = 1e12
    found = pl.deploy(problem, **options)
    if most is None:
        assert found.status == "infeasible", found
        assert found.reason
        return problem, found, None
    assert found.status == "optimal", found
    assert found.requests_per_s == found.bound == pytest.approx(most, rel=1e-9)
    check_valid(problem, found, known)
    # programs over lists are solved within a solver's tolerance
    assert min(found.details["bounds"].values()) >= most * (1 - 1e-8)
    if not pools:
        alone = pl.deploy(problem, single=True, **options)
        assert alone.status == "optimal", alone
        assert alone.count == 1
        assert alone.requests_per_s == pytest.approx(
            max(truth.kept(every, known).values()), rel=1e-9
        )
        check_valid(problem, alone, known)
    rate = float(np.random.default_rng(seed).uniform(0.3, 1.0)) * most
    least = truth.best(every, known, rate)
    cheap = pl.deploy(problem, requests_per_s=rate, **options)
    assert cheap.status == "optimal", cheap
    assert cheap.usd_per_hour == pytest.approx(least, rel=1e-9)
    assert max(cheap.details["bounds"].values()) <= least * (1 + 1e-9)
    assert cheap.requests_per_s >= rate * (1 - 1e-9)
    check_valid(problem, cheap, known)
    return problem, found, most


def check_valid(problem, found, limits):
    """Pipelines on GPUs of their own, each within the limits with memory for what is in flight."""
    gpus = [g for p in found.pipelines for r in p.replicas for g in r.gpus]
    assert len(gpus) == len(set(gpus))
    for pipeline in found.pipelines:
        own = dataclasses.replace(problem, workload=pipeline.workload)
        for replica in pipeline.replicas:
            number = pipeline.workload.in_flight
            served = times(own, replica, number).service(own, number)
            assert served.keeps(limits)
            assert served.requests_per_s == pytest.approx(pipeline.service.requests_per_s, rel=1e-9)


# A hop back that TTFT does not count; a bound below 0 (179); a last token that is not waited for (619).
SEEDS = (319, 179, 619, *(n for n in range(1000) if n not in (179, 319, 619)))


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_equal_to_every_deployment(seed):
    """Two batches, all numbers in flight, one pool or two; the most requests/s, and the least price of a rate."""
    compare(seed)


@pytest.mark.quick(5)
# 2009, 2023: the best that is known when a list ends is not the best of all.
@pytest.mark.parametrize(
    "seed", [2009, 2023, *(n for n in range(2000, 2080) if n not in (2009, 2023))]
)
def test_where_lists_end_early_every_bound_holds(seed, monkeypatch):
    """With one label at each boundary, or two."""
    for name in ("_FIRST_LABELS", "MOST_LABELS"):
        monkeypatch.setattr(closing, name, 1 + seed % 2)
    monkeypatch.setattr(closing, "_MOST_LISTING_STEPS", 0 if seed % 3 else 10**6)
    monkeypatch.setattr(closing, "_FEW_MIXES", 0)
    problem, batches, pools, limits, truth, every = asked(seed, most=24)
    most = truth.best(every, Limits(**limits)) or 0.0
    found = pl.deploy(problem, batches=batches, pools=pools, **{"ttft_ms": 1e12, **limits})
    assert (found.requests_per_s or 0.0) <= most * (1 + 1e-9)
    if most:
        assert found.bound >= most * (1 - 1e-9)
    assert found.status != "optimal" or found.requests_per_s == pytest.approx(most, rel=1e-9)


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", [45, *range(24)])
def test_no_pipeline_serves_more_for_its_price_than_its_pool_is_said_to(seed, monkeypatch):
    """With few steps of rates; nor do all deployments, where one pool is listed and prices speak for the other."""
    monkeypatch.setattr(pricing, "_RATE_STEPS", 3)
    problem, batches, _, limits, truth, every = asked(seed)
    known = Limits(**limits)
    problems = [for_phase(problem, phase, b) for phase in truth.phases for b in batches]
    offers = first_offers(problems, NEVER, keep_nodes_apart=True, limits=known)
    offers = [offer for offer in offers if len(offer.stage_rates)]
    tokens = {p.workload.phase: float(request_tokens(p)) for p in problems}
    for offer in offers:
        of, load = offer.table.classes.of, offer.problem.workload
        price = np.random.default_rng(seed).choice([0.3, 1 / 3, 7.0], len(offer.table.classes))
        (low, high), least = offer.asked, offer.least(price).price
        alone = Truth(problem, [load.batch_size], [load.phase])
        for (phase, used), served in alone.kept(alone.every(), known).items():
            rate, paid = served * tokens[phase], sum(price[of[g]] for g in used)
            ranges = (low <= rate * (1 + 1e-9)) & (rate <= high * (1 + 1e-9))
            assert rate / paid <= (high / least)[ranges].max() * (1 + 1e-9)
    if len(tokens) > 1 and {offer.pool for offer in offers} == {*tokens}:
        counts = offers[0].table.classes.count
        goal = DeploymentGoal(counts=counts, load=0.0, price=0.0 * counts, pools=tokens)
        search = Generation(offers=offers, goal=goal, deadline=NEVER)
        search.bound_by_work()
        search.generate()
        search.best = None
        search.solve_whole_for(np.inf)
        pairs = [
            (a, b) for a, b in combinations(search.pipelines, 2) if a.offer.pool != b.offer.pool
        ]
        fits = any((np.add(a.gpus, b.gpus) <= counts).all() for a, b in pairs)
        assert (search.best is not None) == fits
        search.best = None
        search._list_one_pool("decode")
        most = truth.best(every, known) or 0.0
        assert most <= search.bound * (1 + 1e-9)
        assert not search.settled or search.value == pytest.approx(most, rel=1e-9)


@pytest.mark.quick(1)
@pytest.mark.parametrize("filling", ["one", "dynamic", "by_stages"])
@pytest.mark.parametrize("seed", range(40))
def test_engines_that_fill_pipelines_otherwise(seed, filling):
    """The definition is exact; a deployment's bound by stages may be that of more in flight."""
    problem, batches, _ = drawn(seed, 12)
    problem = dataclasses.replace(problem, costs=filled(problem.costs, filling))
    truth = Truth(problem, batches, (problem.workload.phase,))
    every = truth.every()
    known = Limits(tpot_ms=1000 * max((row[3] for row in every), default=0) or math.inf)
    most = truth.best(every, known)
    defined = best_deployment(problem, known, batches, truth.phases)
    found = pl.deploy(problem, batches=batches, tpot_ms=known.tpot_ms, ttft_ms=1e12)
    if most is None:
        assert defined is None
        assert found.status != "optimal"
        return
    assert defined.requests_per_s == pytest.approx(most, rel=1e-9)
    assert found.status == "optimal"
    assert found.requests_per_s <= most * (1 + 1e-9) <= found.bound * (1 + 1e-8)
    if found.status == "optimal":
        assert found.requests_per_s == pytest.approx(most, rel=1e-9)


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(40))
def test_the_definition_finds_the_same(seed):
    """The front's plain search, and the engine's few looks at the numbers in flight."""
    problem, batches, _, limits, truth, every = asked(seed, most=12)
    known = Limits(**limits)
    most = truth.best(every, known)
    found = best_deployment(problem, known, batches, truth.phases)
    assert (found is None) == (most is None)
    if most is None:
        return
    assert found.requests_per_s == pytest.approx(most, rel=1e-9)
    cheap = best_deployment(problem, known, batches, truth.phases, 0.7 * most)
    assert cheap.usd_per_hour == pytest.approx(truth.best(every, known, 0.7 * most), rel=1e-9)
    for phase, placement, served in found.pipelines:
        for batch in batches:
            own = for_phase(problem, phase, batch)
            plain, fast = (f(own, placement, known) for f in (best_service, timing.best_service))
            assert (plain is None) == (fast is None)
            if plain is not None:
                assert fast.requests_per_s == pytest.approx(plain.requests_per_s, rel=1e-12)
        assert served.keeps(known)


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(40))
def test_the_simulator_finds_the_same_times(seed):
    """TPOT between two tokens of one sequence, and the traversal in TTFT, action by action."""
    problem, batches, pools, limits, truth, _ = asked(seed)
    options = limits if limits or pools else {"ttft_ms": 1e12}
    found = pl.deploy(problem, batches=batches, pools=pools, **options)
    for pipeline in found.pipelines:
        load, stages, served = pipeline.workload, pipeline.placement.stages, pipeline.service
        for at in ("mean", "last") if load.phase != "prefill" else ():
            own = dataclasses.replace(problem, workload=dataclasses.replace(load, timed_at=at))
            evaluation = pl.evaluate(own, pipeline.placement)
            costs, leaving = lane_costs(evaluation)
            if len(stages) > 1:
                size, pairs = 4 * load.batch_size / 1e9, product(stages[-1].gpus, stages[0].gpus)
                leaving += max(truth.sent(load, size, *pair) for pair in pairs)
            number = load.in_flight
            shown = simulate_in_flight(costs, 6 * number, number, leaving)
            ends = shown.end.reshape(shown.schedule.ranks, 6 * number)[-1]
            tpot = served.tpot_s if at == "mean" else served.last_tpot_s
            assert ends[5 * number] - ends[4 * number] == pytest.approx(tpot, rel=1e-9)
            if load.phase == "mixed" and at == "mean":
                passes = math.ceil(load.output_tokens / load.batch_size)
                whole = passes * served.tpot_s + evaluation.seconds_per_pass
                assert served.ttft_s == pytest.approx(whole, rel=1e-9)


MIXED = {"sequence_length": 2000, "batch_size": 8, "phase": "mixed", "output_tokens": 200}


@pytest.mark.slow
def test_what_prevents_a_limit_is_named_with_what_helps():
    problem = three_types((1, 2, 0), **MIXED)
    short = pl.deploy(problem, tpot_ms=5)
    assert short.status == "infeasible"
    ms = float(short.reason.rpartition("a limit of ")[2].split()[0])
    assert pl.deploy(problem, tpot_ms=1.001 * ms).status == "optimal"  # what helps does help
    for asked, options in (
        (problem, {"ttft_ms": 50, "batches": [1, 2]}),
        (problem, {"requests_per_s": 1000, "tpot_ms": 50, "batches": [8]}),
        (three_types((1, 0, 0), **MIXED), {"pools": True}),
    ):
        found = pl.deploy(asked, **options)
        assert found.status == "infeasible"
        assert found.reason


@pytest.mark.slow
def test_what_limits_cost_is_a_curve():
    """Dollars against requests/s within limits, and TPOT against requests/s; each point is what `deploy` finds."""
    known = {"batches": [8], "tpot_ms": 50, "ttft_ms": 4000}
    problem = three_types((1, 1, 0), **MIXED)
    curve = pl.trade_off(problem, "usd_per_hour", deployments=True, **known)
    rates, dollars = zip(*((p.requests_per_s, p.usd_per_hour) for p in curve.points), strict=True)
    assert len(rates) > 1
    assert rates == tuple(sorted(rates, reverse=True))
    assert dollars == tuple(sorted(dollars, reverse=True))
    one = pl.deploy(problem, requests_per_s=rates[1], **known)
    assert one.usd_per_hour == pytest.approx(dollars[1])
    curve = pl.trade_off(
        three_types((1, 2, 0), **MIXED), "tpot_ms", deployments=True, batches=[4, 16]
    )
    frame = curve.to_frame()
    assert len(frame) > 1
    assert frame["tpot_ms"].is_monotonic_decreasing
    assert frame["requests_per_s"].is_monotonic_decreasing
    assert frame["proven"].all()
