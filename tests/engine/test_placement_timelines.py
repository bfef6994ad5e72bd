"""A placement's pipeline: closed loops against an event simulator, the evaluator's rate, training, refusals."""

import dataclasses
import heapq
from collections import deque

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab import course
from pipelab.engine.schedules import RULES
from pipelab.engine.timeline.placement_timelines import least_in_flight, round_time
from pipelab.engine.timeline.timeline import simulate_in_flight
from pipelab.writeup.linear_rates import with_link_units


def events(times, passes, in_flight, waits=None):
    """An independent truth: jobs stand in queues, and a heap of ends decides what happens next.

    `waits`: behind each lane, so long until the next lane (or the way out) has the job; the lane
    goes on meanwhile. Returns the end of every pass on every lane, in the order in which the last
    lane lets them go.
    """
    queues = [deque() for _ in times]
    ends = {}  # (lane, pass) → time
    running, heap, entered = [None] * len(times), [], min(in_flight, passes)
    queues[0].extend(range(entered))
    waits = np.zeros(len(times)) if waits is None else waits

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
    """Lanes of all kinds: equal ones, ties, very fast ones, one that dominates."""
    lanes = int(rng.integers(1, 8))
    kind = rng.integers(0, 4)
    times = rng.uniform(0.1, 10, lanes)
    if kind == 1:
        times = rng.integers(1, 4, lanes).astype(float)
    elif kind == 2:
        times[rng.random(lanes) < 0.5] *= 1e-6
    elif kind == 3:
        times[rng.integers(lanes)] *= 20
    return times


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_every_pass_ends_when_the_event_simulator_says(first):
    for seed in range(first, first + 100):
        rng = np.random.default_rng(seed)
        times = random_times(rng)
        passes, in_flight = int(rng.integers(1, 30)), int(rng.integers(1, 12))
        timeline = simulate_in_flight(pl.StageCosts(tuple(times)), passes, in_flight)
        expected = events(times, passes, in_flight)
        found = timeline.end.reshape(len(times), passes)
        assert np.allclose(found, expected, rtol=1e-12, atol=0), (seed, times, passes, in_flight)
        # Never more than so many between the first lane's start and the last lane's end.
        start = timeline.start.reshape(len(times), passes)[0]
        assert max((start <= t).sum() - (found[-1] <= t).sum() for t in start) <= in_flight, seed


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_the_full_pipelines_rate_is_the_lesser_of_the_slowest_lane_and_the_latency(first):
    for seed in range(first, first + 50):
        rng = np.random.default_rng(seed)
        times, in_flight = random_times(rng), int(rng.integers(1, 14))
        costs, most = pl.StageCosts(tuple(times)), 1 / times.max()
        exact = min(most, in_flight / times.sum())
        assert in_flight / round_time(costs, in_flight) == pytest.approx(exact, rel=1e-9), seed
        # No round differs from another, the first one included.
        leaves = events(times, 6 * in_flight, in_flight)[-1]
        rounds = leaves[in_flight:] - leaves[:-in_flight]
        assert np.allclose(rounds, in_flight / exact, rtol=1e-9), seed
        # The fewest in flight are the fewest.
        reached = [n / round_time(costs, n) >= most * (1 - 1e-6) for n in range(1, len(times) + 1)]
        assert reached.index(True) + 1 == least_in_flight(costs, most), seed


def random_waits(rng, times):
    """Waits behind the lanes: none, some, or one that outlasts everything."""
    return rng.choice([0.0, 0.5, 3.0], len(times)) * times * rng.choice([1, 1, 10])


@pytest.mark.slow
def test_waits_behind_lanes_delay_and_keep_no_other_from_the_lane():
    """As a stage whose GPUs take turns, or a message on the wire; the last wait is on the way out."""
    more = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        times = random_times(rng)
        waits, passes, in_flight = (
            random_waits(rng, times),
            int(rng.integers(1, 40)),
            int(rng.integers(1, 20)),
        )
        costs, leaving = pl.StageCosts(tuple(times), comm=tuple(waits[:-1])), float(waits[-1])
        found = simulate_in_flight(costs, passes, in_flight, leaving).end.reshape(
            len(times), passes
        )
        assert np.allclose(found, events(times, passes, in_flight, waits), rtol=1e-12, atol=0), seed
        latency = times.sum() + waits.sum()
        exact = min(1 / times.max(), in_flight / latency)
        assert in_flight / round_time(costs, in_flight, leaving) == pytest.approx(
            exact, rel=1e-9
        ), seed
        least = least_in_flight(costs, 1 / times.max(), leaving)
        assert least == max(1, np.ceil(latency / times.max() * (1 - 1e-6))), seed
        more += least > len(times)
    assert more > 8


def test_without_a_limit_it_is_the_inference_schedule():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        times, passes = random_times(rng), int(rng.integers(1, 20))
        costs = pl.StageCosts(tuple(times))
        free = pl.simulate(pl.schedule("Inference", len(times), passes), costs)
        limited = simulate_in_flight(costs, passes, in_flight=passes)
        assert np.array_equal(limited.end, free.end)
        assert np.array_equal(limited.start, free.start)


@pytest.mark.quick(6)
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("case", pl.writeup.cases())
def test_every_bundled_case_keeps_its_promise(case, gpus):
    problem = pl.load_case(case, max_gpus_per_stage=gpus, link_units="tokens")
    result = pl.solve(problem, "aggregated")
    assert result.status == "optimal"
    placements = [result.placement]
    for method in ("even", "proportional"):  # the optimum of small cases is a single stage
        placements += [p for p in [pl.solve(problem, method).placement] if p is not None]
    for placement in placements:
        placed = pl.timeline_of(problem, placement)
        evaluated = pl.evaluate(problem, placement)
        assert placed.steady_rate == pytest.approx(evaluated.throughput, rel=1e-6)
        assert placed.reaches_predicted_rate
        assert placed.in_flight == placed.in_flight_needed
        times = np.array([lane.seconds + lane.wait for lane in placed.lanes])
        assert placed.latency_s == pytest.approx(times.sum(), rel=1e-12)
        assert placed.latency_s == pytest.approx(evaluated.seconds_per_pass, rel=1e-12)
        if placed.in_flight_needed > 1:
            fewer = pl.timeline_of(problem, placement, in_flight=placed.in_flight_needed - 1)
            assert not fewer.reaches_predicted_rate
            assert fewer.steady_rate < evaluated.throughput * (1 - 1e-6)


def random_placement(rng, problem):
    """A reader's own: cuts and GPUs by chance; valid or not."""
    layers, gpus = problem.model.layers, rng.permutation(len(problem.cluster)).tolist()
    stages = int(rng.integers(1, min(layers, len(gpus)) + 1))
    cuts = sorted((rng.permutation(layers - 1)[: stages - 1] + 1).tolist())
    sizes = np.diff([0, *cuts, layers]).tolist()
    most = problem.max_gpus_per_stage if len(gpus) >= stages * problem.max_gpus_per_stage else 1
    return pl.Placement.of([(n, gpus[i * most : (i + 1) * most]) for i, n in enumerate(sizes)])


@pytest.mark.slow
def test_random_placements_reach_the_evaluated_rate():
    """Several stages, mixed stages, slow links, different layers and either cost model."""
    checked = several = links = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        problem = oracle.random_problem(seed, link_units="tokens", unlike=seed % 3 == 0)
        if seed % 2:
            problem = dataclasses.replace(
                problem,
                costs=oracle.TableCosts(seed, slowest=False, link_units=problem.costs.link_units),
                batch_split="even",
            )
        placement = random_placement(rng, problem)
        try:
            evaluated = pl.evaluate(problem, placement)
        except pl.errors.InvalidPlacement:
            continue
        placed = pl.timeline_of(problem, placement)
        assert placed.steady_rate == pytest.approx(evaluated.throughput, rel=1e-6), seed
        assert {lane.name for lane in placed.lanes if lane.bottleneck} == set(
            evaluated.bottlenecks
        ), seed
        longest = max(lane.seconds for lane in placed.lanes)
        slowest = {lane.name for lane in placed.lanes if lane.seconds >= longest * (1 - 2e-12)}
        assert slowest == set(evaluated.bottlenecks), seed
        checked += 1
        several += len(placed.lanes) > 1
        links += any(lane.link and lane.bottleneck for lane in placed.lanes)
    assert checked > 50
    assert several > 25
    assert links > 5


def test_a_stage_whose_gpus_take_turns_keeps_the_promise_and_hands_on_later():
    """One sequence on two GPUs: as many passes as two begin, each as long as one GPU needs."""
    problem = pl.Problem(
        pl.Cluster.from_counts({"A100-SXM-40": 4}, 40, 25.0), pl.load_model("Llama-3-8B"),
        pl.Workload(2048, 1, "decode"), pl.Roofline(), max_gpus_per_stage=2,
    )  # fmt: skip
    both, alone = ((g, g + 1) for g in (0, 2)), ((0,), (1,))
    turns, single = (pl.Placement.of([(16, s) for s in sets]) for sets in (both, alone))
    placed = pl.timeline_of(problem, turns)
    evaluated, one = placed.evaluation, pl.evaluate(problem, single)
    assert evaluated.seconds_per_pass == pytest.approx(one.seconds_per_pass, rel=1e-12)
    assert evaluated.throughput > one.throughput
    assert placed.latency_s == pytest.approx(evaluated.seconds_per_pass, rel=1e-12)
    assert placed.steady_rate == pytest.approx(evaluated.throughput, rel=1e-9)
    for lane, report in zip(placed.lanes[::2], evaluated.stages, strict=True):
        assert lane.seconds == pytest.approx(1 / report.throughput)
        assert lane.seconds + lane.wait == pytest.approx(report.seconds)
        assert lane.wait > 0
    frame = placed.to_frame()
    assert list(frame["handed_on_after_seconds"]) == pytest.approx(
        [lane.seconds + lane.wait for lane in placed.lanes]
    )
    assert "handed_on_after_seconds" not in pl.timeline_of(problem, single).to_frame()
    few = pl.timeline_of(problem, turns, in_flight=1)
    assert few.steady_rate == pytest.approx(1 / evaluated.seconds_per_pass)


class Halves:
    """Rates that fall with the layers, in any phase: enough to decode with."""

    gpu_types = ("A100", "V100")

    def check(self, problem):
        """Nothing is refused."""

    def link_throughput(self, problem, bandwidth_gb_per_s):
        return bandwidth_gb_per_s / problem.tensor_gb() * problem.workload.tokens

    def stage(self, model, workload, gpus, layers, batch_split):
        rate = sum({"A100": 800, "V100": 400}[g.type] for g in gpus) / len(layers)
        return pl.problem.StageCost(
            rate, (workload.batch_size / len(gpus),) * len(gpus), (1.0,) * len(gpus)
        )


@pytest.fixture
def decode(tiny):
    """Three stages, the last two slowest, and links that take a quarter of their time."""
    cluster = tiny.cluster.scaled_bandwidth(1e-4)
    workload = pl.Workload(2048, 16, "decode")
    return with_link_units(
        dataclasses.replace(tiny, costs=Halves(), workload=workload, cluster=cluster), "tokens"
    )


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
    assert alone.steady_rate == pytest.approx(16 / sum(times))
    assert "Memory" not in placed.sentence + alone.sentence
    prefill = dataclasses.replace(decode, workload=pl.Workload(2048, 16))
    assert pl.timeline_of(prefill, PARTS).time_per_token_s is None


def test_the_sweep_is_simulated_and_meets_its_bound(decode):
    frame = pl.timeline_of(decode, PARTS).sweep()
    assert list(frame["in_flight"]) == [1, 2, 3, 4, 5]
    assert np.allclose(frame["steady_rate_tokens_per_s"], frame["bound_tokens_per_s"], rtol=1e-9)
    assert frame["bound_tokens_per_s"].iloc[-1] == 400
    own = pl.timeline_of(decode, PARTS).sweep([2, 7])
    assert list(own["in_flight"]) == [2, 7]
    with pytest.raises(pl.errors.InvalidValue, match="in_flight = 0: expected at least 1"):
        pl.timeline_of(decode, PARTS).sweep([0])


def test_what_runs_by_default_is_what_is_attained():
    """Memory holds fewer batches than would fill this pipeline: so many run, at the attainable rate."""
    counts, memory = {"A100-SXM-40": 1, "L4": 4}, {"A100-SXM-40": 40, "L4": 24}
    problem = pl.Problem(
        pl.Cluster.from_counts(counts, memory, 12.5), pl.load_model("Llama-3-8B"),
        pl.Workload(16384, 16, "decode"), pl.Roofline(),
    )  # fmt: skip
    parts = pl.Placement.of([(12, (0,)), (5, (1,)), (5, (2,)), (5, (3,)), (5, (4,))])
    found, placed = pl.evaluate(problem, parts), pl.timeline_of(problem, parts)
    assert 1 < found.in_flight < found.in_flight_needed
    assert placed.in_flight == found.in_flight
    assert placed.fits
    assert placed.predicted_rate == found.rate > 1.2 * found.attainable
    assert placed.steady_rate == pytest.approx(found.attainable, rel=1e-9)
    assert "Memory" not in placed.sentence
    frame = placed.sweep()
    assert frame[frame["fits"]]["in_flight"].max() == found.in_flight
    assert not frame[frame["in_flight"] == found.in_flight_needed]["fits"].any()
    figure = pl.plot(placed, kind="in_flight")
    held = f"{found.in_flight} microbatches in flight: {found.attainable:.4g} tokens/s"
    assert held in figure.layout.title.text
    hollow = next(trace for trace in figure.data if "does not hold" in trace.name)
    assert min(hollow.x) > found.in_flight
    more = pl.timeline_of(problem, parts, in_flight=found.in_flight_needed)
    assert not more.fits
    assert more.sentence.endswith(f"Memory does not hold {found.in_flight_needed}.")
    assert f"memory does not hold {found.in_flight_needed}" in pl.plot(more).layout.title.text
    one = pl.timeline_of(problem, parts, in_flight=1)
    assert one.steady_rate == pytest.approx(
        pl.evaluate(problem.with_in_flight(1), parts).attainable
    )


def test_lanes_and_sentences_say_what_works_where(decode):
    placed = pl.timeline_of(decode, PARTS)
    labels = [lane.label for lane in placed.lanes]
    assert labels[:3] == [
        "stage 1: 2 layers on 2 × A100",
        "link 1→2",
        "stage 2: 1 layer on 1 × V100",
    ]
    frame = placed.to_frame()
    assert list(frame["bottleneck"]) == ["", "", "◀", "", "◀"]
    assert list(frame["busy_when_full"].round(9))[::2] == [0.5, 1.0, 1.0]
    assert placed.sentence.startswith(
        "3 microbatches in flight: 400 tokens/s, the rate of its slowest lane; 3 are needed"
    )
    few = pl.timeline_of(decode, PARTS, in_flight=2)
    assert f"{few.steady_rate / 400:.1%} of the rate of 400, which 3 would reach" in few.sentence
    assert "stage 1: 2 layers on 2 × A100" in placed._repr_html_()


def test_the_gantt_shows_every_lane_and_frames_the_bottleneck(decode):
    placed = pl.timeline_of(decode, PARTS)
    figure = pl.plot(placed, follow=1)
    assert list(figure.layout.yaxis.ticktext)[2:5] == [
        "<b>stage 2: 1 layer on 1 × V100 ◀</b>", "link 2→3", "<b>stage 3: 1 layer on 1 × V100 ◀</b>",
    ]  # fmt: skip
    bars = {trace.name: trace for trace in figure.data}
    frames = bars["bottleneck"]
    assert sorted({round(y) for y in frames.y if y == y}) == [2, 4]
    # from its first pass to its last
    assert frames.x[0] == pytest.approx(placed.timeline.start[18])
    assert frames.x[1] == pytest.approx(placed.timeline.end[26])
    assert len(bars["stage computes"].x) == 27
    assert len(bars["link sends"].x) == 18
    assert list(bars["stage computes"].text[:4]) == ["0", "1", "2", "0"]  # they go round
    hover = bars["stage computes"].hovertext
    assert hover[3].endswith("waited for microbatch 0 to leave stage 3")
    assert "microbatch 0, token 2" in hover[3]
    assert hover[1].endswith("waited until stage 1 was done with microbatch 0")
    assert hover[9].endswith("went on at once from link 1→2")
    assert "3 in flight: 400 tokens/s once the pipeline is full" in figure.layout.title.text
    with pytest.raises(
        pl.errors.InvalidValue, match="follow = 3: expected None or a microbatch from 0 to 2"
    ):
        pl.plot(placed, follow=3)
    assert len(pl.plot(placed, follow=None).data) == 4
    long = pl.plot(pl.timeline_of(decode, PARTS, microbatches=1000))
    assert len(long.data[1].x) == 3 * 120
    assert "the first 120 of 1000 shown" in long.layout.title.text


def test_the_gantt_can_leave_out_links(decode):
    placed = pl.timeline_of(decode, PARTS)
    figure = pl.plot(placed, follow=1, links=False)
    bars = {trace.name: trace for trace in figure.data}
    assert "link sends" not in bars
    # The same bars as with links, one row after the other.
    with_links = pl.plot(placed).data[1]
    assert list(bars["stage computes"].base) == list(with_links.base)
    assert [2 * row for row in bars["stage computes"].y] == list(with_links.y)
    slowest = max(lane.seconds for lane in placed.lanes if lane.link)
    busiest = slowest * placed.steady_rate / decode.workload.tokens
    told = f"links, busy at most {busiest:.1%} of the time, are left out"
    assert told in figure.layout.title.text


def test_a_lane_has_numbers_where_any_of_them_fits_or_none(decode):
    def numbers(placed):
        bars = pl.plot(placed).data[1]
        return [
            {text for text, row in zip(bars.text, bars.y, strict=True) if row == lane}
            for lane in (0, 2, 4)
        ]

    few = numbers(pl.timeline_of(decode, PARTS, microbatches=24, in_flight=12))
    # stage 1 is twice as fast
    assert few == [{""}, {str(i) for i in range(12)}, {str(i) for i in range(12)}]
    many = pl.timeline_of(decode, PARTS, microbatches=120, in_flight=12)
    assert numbers(many) == [{""}] * 3
    assert "each bar is a microbatch" in pl.plot(many).layout.title.text


@pytest.mark.slow
def test_a_pipeline_too_long_for_bars_is_a_raster(decode):
    layers = 70
    cluster = pl.Cluster.from_counts({"V100": layers}, 80, 1)
    problem = dataclasses.replace(
        decode, cluster=cluster, model=dataclasses.replace(decode.model, layers=layers)
    )
    placed = pl.timeline_of(problem, pl.Placement.of([(1, (g,)) for g in range(layers)]))
    figure = pl.plot(placed)
    assert [trace.type for trace in figure.data] == ["heatmap"]
    assert figure.data[0].z.shape[0] == 139
    assert "each pixel shows" in figure.layout.title.text
    assert figure.layout.yaxis.ticktext[1].startswith("<b>stage 4: 1 layer on 1 × V100")
    assert placed.in_flight == 71  # the links' time comes on top of the stages'
    assert len(placed.sweep()) <= 44


def test_the_figure_shows_how_many_it_takes(decode):
    figure = pl.plot(pl.timeline_of(decode, PARTS), kind="in_flight")
    assert "3 microbatches in flight reach 400 tokens/s" in figure.layout.title.text
    assert figure.layout.annotations[0].text == "3 needed"
    points = next(trace for trace in figure.data if trace.name == "simulated")
    assert list(points.y)[2] == pytest.approx(400)
    bound = figure.data[0]
    assert bound.x[1] == pytest.approx(400 * pl.timeline_of(decode, PARTS).latency_s / 16)
    one = pl.plot(
        pl.timeline_of(pl.load_case("tiny"), pl.Placement.of([(4, (0,))])), kind="in_flight"
    )
    assert "1 microbatch in flight reaches 217.5 tokens/s" in one.layout.title.text


@pytest.mark.parametrize("name", sorted(set(RULES) - {"Inference"}))
def test_training_runs_every_schedule_over_the_stages(decode, name):
    matrix = decode.cluster.bandwidth_matrix().copy()
    np.fill_diagonal(matrix, 0)  # what a GPU sends itself is never read
    cluster = pl.Cluster(decode.cluster.gpus, matrix)
    problem = dataclasses.replace(decode, workload=pl.Workload(2048, 16), cluster=cluster)
    step = pl.timeline_of(problem, PARTS, microbatches=9, schedule=name, training=True)
    timeline = step.timeline
    forward = np.array([16 * 2048 / report.throughput for report in step.evaluation.stages])
    assert timeline.schedule.name == name
    assert np.allclose(timeline.busy, 9 * 3 * forward)  # forward, and twice as much backward
    assert step.bound == pytest.approx(16 * 2048 / (3 * forward.max()))
    assert step.rate == pytest.approx(9 * 16 * 2048 / timeline.makespan)
    assert step.rate < step.bound
    comm = timeline.costs.tables(timeline.schedule)["comm"]
    hop = [16 * 2048 / link.throughput for link in step.evaluation.links]
    assert comm[:2] == pytest.approx(hop)
    if timeline.schedule.chunks == 2:
        # between the last stage of the way down and the next: none in a V, the way home else
        middle = comm[2]
        assert (middle == 0) == (name in ("ZBV", "DualPipeV"))
    assert pl.plot(step).layout.yaxis.ticktext[0] == "stage 1: 2 layers on 2 × A100"
    assert name in pl.plot(step).layout.title.text
    frame = step.to_frame()
    assert np.allclose(frame["forward_s"], forward)
    assert np.allclose(frame["backward_s"], 2 * forward)


def test_training_takes_the_slower_direction_of_a_link(decode):
    problem = dataclasses.replace(decode, workload=pl.Workload(2048, 16))
    step = pl.timeline_of(problem, PARTS, training=True)
    assert step.timeline.schedule.microbatches == 12
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
        ({"in_flight": "3"}, "in_flight = '3': expected a whole number"),
        ({"in_flight": 10**7}, "at most 5,000,000 are listed"),
        ({"microbatches": 0}, "microbatches = 0: expected at least 1"),
        ({"microbatches": 1.5, "training": True}, "microbatches = 1.5: expected a whole number"),
        ({"schedule": "Inference", "training": True}, "expected a schedule with backwards"),
        ({"schedule": "1f1b", "training": True}, "did you mean '1F1B'"),
    ],
)
def test_bad_options_are_named(tiny, options, message):
    with pytest.raises(pl.PipelabError, match=message):
        pl.timeline_of(with_link_units(tiny, "tokens"), TWO, **options)


def test_what_has_no_timeline_says_why(tiny, two_stages, decode):
    tokens, heavy = with_link_units(tiny, "tokens"), with_link_units(two_stages, "tokens")
    model = dataclasses.replace(tokens.model, layer_weight_gb=500)
    none = dataclasses.replace(tokens, model=model)
    too_much = r"stage 1 \(layers 1–4\) needs 101\.6 GB on GPU 0 \(A100\), .*80 GB"
    for problem, placement, message in (
        (tiny, TWO, r"'transfers': expected 'tokens'.*with_link_units\(problem, 'tokens'\)"),
        (tokens, [(4, (0,))], r"placement = .*expected a Placement"),
        (none, pl.solve(none), r"'infeasible': expected a result that has one\. No placement"),
        (heavy, pl.Placement.of([(4, (0,))]), too_much),
    ):
        with pytest.raises(pl.PipelabError, match=message):
            pl.timeline_of(problem, placement)
    with pytest.raises(pl.errors.InvalidValue, match="'prefill': training reads whole sequences"):
        pl.timeline_of(decode, PARTS, training=True)
    with pytest.raises(pl.errors.InvalidValue, match=r"rate = 0\.6: expected at most 0\.5"):
        least_in_flight(pl.StageCosts((1, 2)), 0.6)


def test_training_asks_what_a_weight_gradient_needs_where_memory_is_shown():
    tiny, halves = (
        pl.load_case("tiny", link_units="tokens"),
        pl.Placement.of([(2, (0,)), (2, (1,))]),
    )
    options = {"microbatches": 8, "schedule": "ZBH1"}
    with pytest.raises(
        pl.errors.InvalidValue, match="weight_activation = None: ZBH1 splits its backward"
    ):
        pl.plot(pl.timeline_of(tiny, halves, **options, training=True), memory=True)
    step = pl.timeline_of(tiny, halves, **options, training=True).timeline
    known = dataclasses.replace(step.costs, weight_activation=0.5)
    assert pl.simulate(step.schedule, known).peak_memory == (2, 1.5)


def test_identical_stages_are_one_row_with_what_they_take():
    """Every stage is in one row, and the framed rows are those that set the pace."""
    problem = course.three_sites()
    for plan in (pl.solve(problem), pl.solve(problem, "proportional")):
        placed = pl.timeline_of(problem, plan)
        (bars,) = course.plot_stage_groups(placed).data
        *rows, links = zip(bars.y, bars.x, bars.marker.line.width, strict=True)
        assert sum(int(name.split(" ")[0]) for name, _, _ in rows) == len(placed.placement)
        slowest = 1000 * max(lane.seconds for lane in placed.lanes)
        assert [bool(width) for *_, width in (*rows, links)] == [
            abs(ms - slowest) < 1e-6 for _, ms, _ in (*rows, links)
        ]
        assert links[1] == 1000 * max(lane.seconds for lane in placed.lanes if lane.link)
    assert course.plot_stage_groups(placed).layout.title.text.startswith(
        "a link sets the pace: 762.9"
    )
