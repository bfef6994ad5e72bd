"""A placement's pipeline: closed loops against an event simulator, the evaluator's rate, training, refusals."""

import dataclasses
import heapq
from collections import deque

import numpy as np
import pytest
from small_problems import random_placement, with_table

import oracle
import pipelab as pl
from pipelab.costs import LayerTimes
from pipelab.engine.schedules import RULES
from pipelab.engine.timeline.placement_timelines import least_in_flight, round_time
from pipelab.engine.timeline.timeline import simulate_in_flight
from pipelab.writeup.linear_rates import with_link_units


def events(times, passes, in_flight, waits):
    """An independent truth: jobs stand in queues, and a heap of ends decides what happens next.

    `waits`: behind each lane, so long until the next lane (or the way out) has the job; the lane
    goes on meanwhile. Returns the end of every pass on every lane, in the order in which the last
    lane lets them go.
    """
    queues = [deque() for _ in times]
    ends = {}  # (lane, pass) → time
    running, heap, entered = [None] * len(times), [], min(in_flight, passes)
    queues[0].extend(range(entered))

    def begin(lane, now):
        if running[lane] is None and queues[lane]:
            running[lane] = queues[lane].popleft()
            heapq.heappush(heap, (now + times[lane], 0, lane, running[lane]))

    begin(0, 0.0)
    while heap:
        now, arrived, lane, job = heapq.heappop(heap)
        if not arrived:
            ends[lane, job] = now
            running[lane] = None
            heapq.heappush(heap, (now + waits[lane], 1, lane, job))
            begin(lane, now)
        elif lane + 1 < len(times):
            queues[lane + 1].append(job)
            begin(lane + 1, now)
        elif entered < passes:  # one has left, so the next may enter
            queues[0].append(entered)
            entered += 1
            begin(0, now)
    return np.array([[ends[lane, job] for job in range(passes)] for lane in range(len(times))])


def random_times(rng):
    """Lanes of all kinds: equal ones, ties, very fast ones, one that dominates. And waits behind them."""
    lanes = int(rng.integers(1, 8))
    kind = rng.integers(0, 4)
    times = rng.uniform(0.1, 10, lanes)
    if kind == 1:
        times = rng.integers(1, 4, lanes).astype(float)
    elif kind == 2:
        times[rng.random(lanes) < 0.5] *= 1e-6
    elif kind == 3:
        times[rng.integers(lanes)] *= 20
    if rng.random() < 0.5:
        return times, np.zeros(lanes)
    return times, rng.choice([0.0, 0.5, 3.0], lanes) * times * rng.choice([1, 1, 10])


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", range(0, 2000, 50))
def test_every_pass_ends_when_the_event_simulator_says(first):
    """Waits delay, as of a stage whose GPUs take turns or of a message, and keep no other from the lane."""
    for seed in range(first, first + 50):
        rng = np.random.default_rng(seed)
        times, waits = random_times(rng)
        passes, in_flight = int(rng.integers(1, 30)), int(rng.integers(1, 14))
        costs, leaving = pl.StageCosts(tuple(times), comm=tuple(waits[:-1])), float(waits[-1])
        timeline = simulate_in_flight(costs, passes, in_flight, leaving)
        start, found = (t.reshape(len(times), passes) for t in (timeline.start, timeline.end))
        ends = events(times, passes, in_flight, waits)
        assert np.allclose(found, ends, rtol=1e-12, atol=0), seed
        # Never more than so many between the first lane's start and the last lane's end.
        most = max((start[0] <= t).sum() - (found[-1] <= t).sum() for t in start[0])
        assert most <= in_flight, seed
        # The full pipeline's rate is the lesser of the slowest lane's and the latency's.
        latency, most = times.sum() + waits.sum(), 1 / times.max()
        exact = min(most, in_flight / latency)
        rounds = round_time(costs, in_flight, leaving)
        assert in_flight / rounds == pytest.approx(exact, rel=1e-9), seed
        # No round differs from another, the first one included.
        leaves = events(times, 3 * in_flight, in_flight, waits)[-1]
        assert np.allclose(leaves[in_flight:] - leaves[:-in_flight], rounds, rtol=1e-9), seed
        least = max(1, np.ceil(latency * most * (1 - 1e-6)))
        assert least_in_flight(costs, most, leaving) == least, seed


def test_random_placements_reach_the_evaluated_rate():
    """Several stages, mixed stages, slow links, different layers and either cost model."""
    checked = several = links = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        problem = oracle.random_problem(seed, link_units="tokens", unlike=seed % 3 == 0)
        if seed % 2:
            problem = with_table(
                dataclasses.replace(problem, batch_split="even"), seed, slowest=False
            )
        placement = random_placement(problem, rng)
        try:
            evaluated = pl.evaluate(problem, placement)
        except pl.errors.InvalidPlacement:
            continue
        placed = pl.timeline_of(problem, placement)
        assert placed.reaches_predicted_rate
        assert placed.steady_rate == pytest.approx(evaluated.throughput, rel=1e-6), seed
        assert placed.latency_s == pytest.approx(evaluated.seconds_per_pass, rel=1e-12)
        longest = max(lane.seconds for lane in placed.lanes)
        slowest = {lane.name for lane in placed.lanes if lane.seconds >= longest * (1 - 2e-12)}
        framed = {lane.name for lane in placed.lanes if lane.bottleneck}
        assert framed == slowest == set(evaluated.bottlenecks), seed
        assert placed.in_flight == placed.in_flight_needed
        if placed.in_flight > 1:
            fewer = pl.timeline_of(problem, placement, in_flight=placed.in_flight - 1)
            assert not fewer.reaches_predicted_rate
            assert fewer.steady_rate < evaluated.throughput * (1 - 1e-6)
        checked += 1
        several += len(placed.lanes) > 1
        links += any(lane.link and lane.bottleneck for lane in placed.lanes)
    assert checked > 25
    assert several > 12
    assert links > 2


@pytest.fixture
def decode(tiny):
    """Three stages, the last two slowest, and links that take a tenth of their time."""
    cluster, costs = tiny.cluster.scaled_bandwidth(1e-4), LayerTimes({"A100": 20.0, "V100": 40.0})
    load = pl.Workload(2048, 16, "decode")
    return dataclasses.replace(tiny, costs=costs, workload=load, cluster=cluster)


PARTS = pl.Placement.of([(2, (0, 1)), (1, (2,)), (1, (3,))])


def test_decode_goes_round_in_a_closed_loop(decode):
    placed = pl.timeline_of(decode, PARTS)
    times = [lane.seconds for lane in placed.lanes]
    assert times[::2] == [0.02, 0.04, 0.04]
    assert placed.in_flight == 3 == int(np.ceil(sum(times) / 0.04))
    start, end = (t.reshape(5, 9) for t in (placed.timeline.start, placed.timeline.end))
    assert (start[0, 3:] >= end[-1, :-3]).all()  # a token waits for the token before
    assert placed.time_per_token_s == pytest.approx(3 * 0.04)
    alone = pl.timeline_of(decode, PARTS, in_flight=1)
    assert alone.time_per_token_s == pytest.approx(sum(times)) == pytest.approx(alone.latency_s)
    prefill = dataclasses.replace(decode, workload=pl.Workload(2048, 16))
    assert pl.timeline_of(prefill, PARTS).time_per_token_s is None
    frame = placed.sweep()
    assert list(frame["in_flight"]) == [1, 2, 3, 4, 5]
    assert np.allclose(frame["steady_rate_tokens_per_s"], frame["bound_tokens_per_s"], rtol=1e-9)
    assert frame["bound_tokens_per_s"].iloc[-1] == pytest.approx(400)


def test_what_runs_by_default_is_what_is_attained():
    """Memory holds fewer batches than would fill this pipeline: so many run, at the attainable rate."""
    counts, memory = {"A100-SXM-40": 1, "L4": 4}, {"A100-SXM-40": 40, "L4": 24}
    cluster, load = pl.Cluster.from_counts(counts, memory, 12.5), pl.Workload(16384, 16, "decode")
    problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline())
    parts = pl.Placement.of([(12, (0,)), (5, (1,)), (5, (2,)), (5, (3,)), (5, (4,))])
    found, placed = pl.evaluate(problem, parts), pl.timeline_of(problem, parts)
    assert 1 < found.in_flight < found.in_flight_needed
    assert placed.in_flight == found.in_flight
    assert placed.fits
    assert placed.predicted_rate == found.rate > 1.2 * found.attainable
    assert placed.steady_rate == pytest.approx(found.attainable, rel=1e-9)
    frame = placed.sweep()
    assert frame[frame["fits"]]["in_flight"].max() == found.in_flight
    assert not frame[frame["in_flight"] == found.in_flight_needed]["fits"].any()
    more = pl.timeline_of(problem, parts, in_flight=found.in_flight_needed)
    assert not more.fits
    assert "Memory" in more.sentence


# training


@pytest.mark.parametrize("name", sorted(set(RULES) - {"Inference"}))
def test_training_runs_every_schedule_over_the_stages(decode, name):
    problem = dataclasses.replace(decode, workload=pl.Workload(2048, 16))
    step = pl.timeline_of(problem, PARTS, microbatches=9, schedule=name, training=True)
    timeline = step.timeline
    forward = np.array([16 * 2048 / report.throughput for report in step.evaluation.stages])
    assert timeline.schedule.name == name
    assert np.allclose(timeline.busy, 9 * 3 * forward)  # forward, and twice as much backward
    assert step.bound == pytest.approx(16 * 2048 / (3 * forward.max()))
    assert step.rate == pytest.approx(9 * 16 * 2048 / timeline.makespan)
    assert step.rate < step.bound
    comm = timeline.costs.tables(timeline.schedule)["comm"]
    assert comm[:2] == pytest.approx(
        [16 * 2048 / link.throughput for link in step.evaluation.links]
    )
    if timeline.schedule.chunks == 2:
        # between the last stage of the way down and the next: none in a V, the way home else
        assert (comm[2] == 0) == (name in ("ZBV", "DualPipeV"))
    assert name in pl.plot(step).layout.title.text
    assert np.allclose(step.to_frame()["backward_s"], 2 * forward)


def test_training_takes_the_slower_direction_of_a_link(decode):
    problem = dataclasses.replace(decode, workload=pl.Workload(2048, 16))
    matrix = problem.cluster.bandwidth_matrix().copy()
    matrix[2, 1] /= 10  # the way back of the first link
    slow = dataclasses.replace(problem, cluster=pl.Cluster(problem.cluster.gpus, matrix))
    there, back = (
        pl.timeline_of(p, PARTS, training=True).timeline.costs.comm for p in (problem, slow)
    )
    assert back == pytest.approx([10 * there[0], there[1]])


TWO = pl.Placement.of([(2, (0,)), (2, (1,))])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_flight": 0}, "in_flight = 0: expected at least 1"),
        ({"in_flight": 10**7}, "at most 5,000,000 are listed"),
        ({"microbatches": 1.5, "training": True}, "microbatches = 1.5: expected a whole number"),
        ({"schedule": "Inference", "training": True}, "expected a schedule with backwards"),
        ({"placement": [(4, (0,))]}, r"placement = .*expected a Placement"),
    ],
)
def test_bad_options_are_named(tiny, options, message):
    tokens = with_link_units(tiny, "tokens")
    with pytest.raises(pl.PipelabError, match=message):
        pl.timeline_of(tokens, **{"placement": TWO} | options)


def test_what_has_no_timeline_says_why(tiny, decode):
    with pytest.raises(pl.PipelabError, match=r"'transfers': expected 'tokens'.*with_link_units"):
        pl.timeline_of(tiny, TWO)
    none = oracle.heavier(with_link_units(tiny, "tokens"), 500)
    with pytest.raises(pl.PipelabError, match="'infeasible': expected a result that has one"):
        pl.timeline_of(none, pl.solve(none))
    with pytest.raises(pl.PipelabError, match="'prefill': training reads whole sequences"):
        pl.timeline_of(decode, PARTS, training=True)
    with pytest.raises(pl.PipelabError, match=r"rate = 0\.6: expected at most 0\.5"):
        least_in_flight(pl.StageCosts((1, 2)), 0.6)
    step = pl.timeline_of(with_link_units(tiny, "tokens"), TWO, 8, schedule="ZBH1", training=True)
    with pytest.raises(pl.PipelabError, match="weight_activation = None: ZBH1 splits its backward"):
        pl.plot(step, memory=True)
