"""The roofline against its own formulas written out once more, published totals, measurements, and brute force."""

import dataclasses
from itertools import product

import numpy as np
import pytest

import oracle
import pipelab as pl
import roofline_oracle
from pipelab.course.n09 import arithmetic_intensity, measured_stages, plot_measured_stages
from pipelab.engine.formulations.program_size import compositions
from pipelab.hardware.pass_times import Demand, Span


def _random(seed, **options):
    """A random problem, every third with GPUs that never share a stage's batch."""
    problem = roofline_oracle.random_problem(seed, **options)
    costs = dataclasses.replace(problem.costs, copies=bool(seed % 3))
    return dataclasses.replace(problem, costs=costs)


@pytest.mark.parametrize("first", range(12))
def test_every_stage_is_what_the_formulas_say(first):
    for seed in range(first, 60, 12):
        problem, rng = _random(seed), np.random.default_rng(seed)
        gpus, layers = problem.cluster.gpus, problem.model.layers
        sets = [
            s
            for k in (1, 2, 3, 4)
            for s in oracle.gpu_sets(dataclasses.replace(problem, max_gpus_per_stage=k))
        ]
        for i, start in product(rng.permutation(len(sets))[:8], range(layers)):
            chosen = [gpus[g] for g in sets[i]]
            _compare(problem, chosen, range(start, int(rng.integers(start + 1, layers + 1))))


def _compare(problem, chosen, span):
    """A stage's rate, time and memory, or what it lacks, with what the oracle says."""
    cost = problem.costs.stage(problem.model, problem.workload, chosen, span, problem.batch_split)
    needs = list(zip(chosen, cost.memory_gb, strict=True))
    fits = all(need <= g.memory_gb * (1 + 1e-9) for g, need in needs)
    best = roofline_oracle.way(problem, chosen, span)
    assert (fits and cost.throughput > 0) == (best is not None)
    if best is not None:
        assert (cost.throughput, cost.pass_seconds) == pytest.approx(best, rel=1e-9)
        for (gpu, need), b in zip(needs, cost.batch, strict=True):
            own = roofline_oracle.memory_gb(problem, gpu, span, b, cost.degree)
            assert need == pytest.approx(own, rel=1e-7)
    elif ways := list(roofline_oracle.ways(problem, chosen, span)):
        # what is reported as missing is what the best mode lacks
        lack = max(need - g.memory_gb for g, need in needs)
        assert lack == pytest.approx(min(way[1] for way in ways), rel=1e-6)


@pytest.mark.parametrize("first", range(12))
def test_tables_are_the_stages(first):
    for seed in range(first, 60, 12):
        problem, rng = _random(seed), np.random.default_rng(seed)
        model, kinds = problem.model, problem.cluster.kinds
        load, split = problem.workload, problem.batch_split
        mixtures = compositions(problem, kinds, problem.cluster.kind_count.tolist())
        tables = problem.costs.stage_tables(model, load, kinds, mixtures, split)
        for c in rng.permutation(len(mixtures))[:6]:
            gpus = [gpu for gpu, n in zip(kinds, mixtures[c], strict=True) for _ in range(n)]
            start = int(rng.integers(model.layers))
            for stop in range(start + 1, model.layers + 1):
                kind = model.spans.kind[start, stop - start - 1]
                cost = problem.costs.stage(model, load, gpus, range(start, stop), split)
                assert tables.throughput[c, kind] == pytest.approx(cost.throughput, rel=1e-9)
                assert tables.pass_seconds[c, kind] == pytest.approx(cost.pass_seconds, rel=1e-9)
                need = dict(zip(gpus, cost.memory_gb, strict=True))
                needs = [need.get(gpu, 0.0) for gpu in kinds]
                assert tables.memory_gb[c, :, kind] == pytest.approx(needs, rel=1e-7)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
def test_solved_like_any_other_and_proven(seed):
    """Brute force has the same rate, lowest cost and least time, and a certificate proves no lower rate."""
    problem = _random(seed, layers=4, gpus=3)
    prices = {"A": 3.0, "B": 1.25, "C": 0.5}
    pool = tuple(dataclasses.replace(g, usd_per_hour=prices[g.type]) for g in problem.cluster.gpus)
    cluster = pl.Cluster(pool, problem.cluster.bandwidth_matrix())
    problem = dataclasses.replace(problem, cluster=cluster)
    every = list(oracle.passes(problem))
    best = max((rate for rate, _, _ in every), default=None)
    for method, options in {"aggregated": {}, "exhaustive": {}, "joint": {"form": "tight"}}.items():
        result = pl.solve(problem, method, "rate", **options)
        assert result.status == ("infeasible" if best is None else "optimal")
        assert best is None or result.throughput == pytest.approx(best, rel=1e-6)
    for floor in (0.0, 0.7 * (best or 1.0)):
        left = [row for row in oracle.attained(problem) if row[0] >= floor]
        cheap, quick = (
            pl.solve(problem, objective=what, at_least=floor) for what in ("cost", "latency")
        )
        assert cheap.status == quick.status == ("optimal" if left else "infeasible")
        if left:
            hourly = [(sum(pool[g].usd_per_hour for g in gpus), rate) for rate, gpus, _ in left]
            dollars = min(usd / rate for usd, rate in hourly) / 3600 * 1e6
            assert cheap.objective.value == pytest.approx(dollars, rel=1e-9)
            assert quick.objective.value == pytest.approx(min(s for _, _, s in left), rel=1e-9)
    result = pl.solve(problem, "aggregated", "rate")
    assert pl.certificate(result).check() > 0
    if best is not None:
        low = result.throughput * 0.999
        with pytest.raises(pl.PipelabError, match="exists"):
            pl.certificate(dataclasses.replace(result, throughput=low, bound=low))


def _problem(**changes):
    options = {
        "cluster": pl.load_cluster("helix-single24"), "model": pl.load_model("Llama-3-70B"),
        "workload": pl.Workload(1000, 8, "decode", in_flight=16), "costs": pl.Roofline(),
    } | changes  # fmt: skip
    return pl.Problem(**options)


# What data sheets and drivers print: sparse 16-bit and 8-bit TFLOP/s, GB/s of memory, GB/s of the link in both
# directions together, MiB.
PRINTED = {
    "B200": (4500, 9000, 8000, 1800, 183359),
    "H20": (296, 592, 4000, 900, 97871),
    "GH200": (1979, 3958, 4000, 900, 97871),
    "RTX6000-Ada": (728.5, 1457, 960, 63, 49140),
    "MI325X": (2614.9, 5229.8, 6000, 896, 262128),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_types_facts_are_those_of_its_data_sheet(name):
    sparse, sparse_8, moved, both, mib = PRINTED[name]
    facts = pl.hardware.load_gpus()[name]
    assert facts.fp16_tflop_per_s == pytest.approx(sparse / 2, rel=1e-3)
    assert facts.fp8_tflop_per_s == pytest.approx(sparse_8 / 2, rel=1e-3)
    assert moved * 0.95 < facts.memory_bandwidth_gb_per_s <= moved
    assert facts.link_gb_per_s == both / 2
    assert facts.memory_gb == pytest.approx(mib * 1024**2 / 1e9, abs=1e-3)
    assert facts.source
    assert pl.hardware.gpus()["price_date"].notna()[name] == (facts.usd_per_hour is not None)


def test_prices_and_networks_come_from_the_files():
    cluster = pl.load_cluster("helix-geo24")
    assert {g.usd_per_hour for g in cluster.gpus if g.type == "L4"} == {0.98}
    assert cluster.bandwidth_between(0, 4) == pytest.approx(0.1 / 8)  # between regions
    assert cluster.bandwidth_between(0, 1) == pytest.approx(10 / 8)
    assert (cluster.latency_between(0, 4), cluster.latency_between(0, 1)) == (50, 1)
    several = pl.load_cluster("helix-hetero42")
    names = [gpu.node for gpu in several.gpus]
    assert len(set(names) - {""}) == 4 + 6 + 4
    first = next(i for i, name in enumerate(names) if name)
    assert several.latency_between(first, first + 1) == 0
    assert not pl.load_cluster("tandemn-pool44").latency_ms.any()


def test_a_far_away_site_delays_and_keeps_its_rate():
    """Fifty milliseconds between sites: the same rate, a longer pass, and more in flight to reach it."""
    problem = _problem(cluster=pl.load_cluster("helix-geo24"), model=pl.load_model("Llama-3-8B"),
                       workload=pl.Workload(1000, 8, "decode"))  # fmt: skip
    near = dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, latency_ms=0))
    plan = pl.Placement.of([(16, (0,)), (8, (4,)), (8, (14,))])  # r1, r2, r3
    there, here = (pl.timeline_of(p, plan) for p in (problem, near))
    assert there.predicted_rate == here.predicted_rate == pytest.approx(there.steady_rate)
    assert there.latency_s - here.latency_s == pytest.approx(0.1)
    assert there.in_flight_needed > here.in_flight_needed
    assert [lane.wait for lane in there.lanes] == pytest.approx([0, 0.05, 0, 0.05, 0])
    # By hand: hidden state and residual of 8 · 4096 · 2 bytes over 0.1 Gbit/s, 10 µs to send, 50 ms on the way.
    link = there.evaluation.links[0]
    assert link.seconds == pytest.approx(2 * 8 * 4096 * 2 / 1.25e7 + 1e-5 + 0.05)
    assert 8 / link.throughput == pytest.approx(2 * 8 * 4096 * 2 / 1.25e7 + 1e-5)
    train = dataclasses.replace(problem, workload=pl.Workload(1000, 1))
    hops = pl.timeline_of(train, plan, training=True).timeline.costs.comm
    assert hops[0] == pytest.approx(1000 * 4096 * 2 / 1.25e7 + 1e-5 + 0.05)


@pytest.mark.slow
def test_predicted_times_are_near_the_measured_ones_and_every_miss_has_a_physical_reason():
    table = pl.hardware.against_measured()
    assert table["error"].abs().median() < 0.06
    assert (table["error"].abs() > 0.3).sum() == 0
    missed = table[table["error"].abs() > 0.2]
    assert len(missed) == 1
    assert missed["note"].notna().all()
    # By hand: 855.65 M weights of 2 bytes at 0.8 · 1555 GB/s take 1.376 ms, and there is little
    # else.
    assert table["predicted"][0] == pytest.approx(855.6544e6 * 2 / (0.8 * 1555e9) * 1000, rel=0.03)


def test_the_parts_of_a_layers_time_add_up_to_what_a_stage_takes():
    llama, gpu = pl.load_model("Llama-3-70B"), pl.GPU("L4", 24)
    overlap = 0.63
    for load in (pl.Workload(2048, 64, "decode"), pl.Workload(700, 1)):
        times = pl.Roofline().layer_times(llama, load, gpu)
        moved = times["weights"] + times["keys and values"] + times["activations"]
        both = max(times["computing"], moved) + (1 - overlap) * min(times["computing"], moved)
        assert times["layer"] == pytest.approx(both + times["overhead"])
        assert times["layer"] == pytest.approx(
            pl.Roofline().pass_seconds(llama, load, gpu, range(1, 2))
        )
    # By hand: 855.65 M weights of 2 bytes at 0.8 · 300 GB/s.
    assert times["weights"] == pytest.approx(855.6544e6 * 2 / 240e9, rel=1e-3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_no_prediction_is_absurd_where_nobody_looked(phase):
    """More sequences or tokens take longer, and more at once yield more; GPUs do not speed up beyond their number."""
    roof, batches, degrees = pl.Roofline(), np.array([1.0, 3, 32, 512]), (1, 2, 8)
    models = [pl.load_model("Mixtral-8x7B", precision=x) for x in ("bf16", "fp8", "int4")]
    for engine, name in product(("vLLM", "vLLM 0.2", "llama.cpp"), roof.gpu_types):
        costs = roof.running(engine)
        gpu = pl.GPU(name, 80, None, "node", roof.gpus[name].link_gb_per_s)
        times = np.empty((len(models), 3, len(degrees), len(batches)))
        for (m, model), (n, tokens) in product(enumerate(models), enumerate((128, 8192, 131_072))):
            demand = Demand(model, pl.Workload(tokens, 1, phase, 1))
            hardware, span = costs.hardware(demand, [gpu]).take(0), Span.of(model, range(32))
            times[m, n] = [hardware.stage_seconds(span, batches, t) for t in degrees]
        assert (np.diff(times, axis=3) > 0).all(), (engine, name)
        assert (np.diff(times, axis=1) > 0).all(), (engine, name)
        spent = times * np.array(degrees)[:, None]
        assert (spent >= times[:, :, :1] * (1 - 1e-12)).all(), (engine, name)
        assert (times <= times[0] * (1 + 1e-12)).all(), (engine, name)  # fewer bits, less time
        rate = batches / times
        if costs.constants.large_allreduce is not None:
            rate = rate[:, :, :2]  # with more GPUs it falls, as measured
        assert (np.diff(rate, axis=3) >= -1e-12 * rate[..., 1:]).all(), (engine, name)


def test_a_layers_arithmetic_intensity_is_that_of_its_weights_and_cache():
    """By hand: of a decode 2 FLOPs per 2 bytes of weight, and its cache."""
    llama = pl.load_model("Llama-3-70B")
    parameters, cache = llama.layer_parameters(), 2048 * llama.kv_bytes
    flops = 2 * parameters + 4 * 64 * 128 * 2048
    moved = 2 * parameters + cache + 8 * 2 * llama.d_model
    found = arithmetic_intensity(llama, pl.Workload(2048, 1, "decode"))
    assert found == pytest.approx(flops / moved, rel=1e-3)


def test_the_errors_of_measured_stages_are_those_of_their_predictions():
    stages = measured_stages()
    assert stages["error"].to_numpy() == pytest.approx(
        (stages["predicted"] / stages["measured"] - 1).to_numpy()
    )
    drawn = [y for trace in plot_measured_stages(stages).data for y in trace.y]
    assert sorted(drawn) == pytest.approx(sorted(100 * stages["error"]))


def test_large_all_reduces_are_slower_where_the_engine_says_so():
    """By hand: two all-reduces a layer, each moving 2 · 3/4 of tokens · width · 2 bytes."""
    model = dataclasses.replace(pl.load_model("Llama-2-70B"), layers=1, vocab=1)
    gpu, tokens = pl.GPU("A100-SXM-80", 80, None, "node", 300), 64 * 2**20 // (2 * model.d_model)
    costs = pl.Roofline(engine="vLLM 0.2")
    share, reached = costs.constants.large_allreduce, costs.constants.link_efficiency * 300e9
    whole = dataclasses.replace(costs.constants, large_allreduce=None)
    plain = dataclasses.replace(costs, engines={"vLLM 0.2": whole})

    def more(load, degree, costs=costs):
        times = [c.pass_seconds(model, load, gpu, range(1), degree) for c in (costs, plain)]
        return times[0] - times[1]

    one = 2 * 2 * 3 / 4 * 64 * 2**20 / reached
    assert more(pl.Workload(tokens, 1), 4) == pytest.approx(one * (1 / share - 1))
    assert more(pl.Workload(tokens // 2, 4), 4) == pytest.approx(2 * one * (1 / share - 1))
    assert more(pl.Workload(tokens - 1, 1), 4) == more(pl.Workload(tokens, 1), 2) == 0
    chunked = dataclasses.replace(costs.constants, chunk_tokens=tokens // 2)
    chunked = dataclasses.replace(costs, engines={"vLLM 0.2": chunked})
    assert more(pl.Workload(tokens, 1), 4, chunked) == 0


@pytest.mark.parametrize("name", pl.hardware.load_gpus())
def test_products_of_8_bits_and_all_reduces_reach_what_was_measured(name):
    """By hand, of every type of GPU: its own share of the 8-bit peak, and PCIe's measured rate among three and more."""
    roof, small = pl.Roofline(), pl.load_model("Llama-3-8B")
    facts = roof.gpus[name]
    fp16, fp8 = facts.fp16_tflop_per_s, (facts.fp8_tflop_per_s or 0) * facts.fp8_share
    gpu, load = pl.GPU(name, 80, None, "node", facts.link_gb_per_s), pl.Workload(1, 8192, "prefill")
    models = [dataclasses.replace(small, precision=precision) for precision in ("bf16", "fp8")]
    hardware = [roof.hardware(Demand(model, load), [gpu]).take(0) for model in models]
    assert hardware[1].flops / hardware[0].flops == pytest.approx(max(fp16, fp8) / fp16)
    moved = 8192 * small.d_model * 2
    for degree in (2, 3, 4, 6, 8, 16):
        seconds = hardware[0].layer_collectives(8192, degree) / 2 - hardware[0].allreduce
        seconds -= (degree - 2) * roof.constants.allreduce_hop_us * 1e-6
        rate = facts.link_gb_per_s * roof.constants.link_efficiency
        if facts.link_gb_per_s < 64 and degree > 2:
            rate = min(rate, np.interp(degree, *np.transpose(roofline_oracle.PCIE)))
        assert 2 * (degree - 1) / degree * moved / seconds == pytest.approx(1e9 * rate)


def test_by_time_two_gpus_cut_the_layers_that_they_share_by_rate():
    """Sharing one sequence, in turns, has the greater rate; cutting its layers halves the pass."""
    gpus = tuple(pl.GPU("A100-SXM-40", 40, None, "node", 300.0) for _ in range(2))
    problem = _problem(
        cluster=pl.Cluster(gpus, np.full((2, 2), 100.0)), model=pl.load_model("Llama-3-8B"), max_gpus_per_stage=2,
        workload=pl.Workload(2048, 1),
    )  # fmt: skip
    both = pl.Placement.of([(32, (0, 1))])
    timely = dataclasses.replace(problem, costs=pl.Roofline(prefer="time"))
    by_rate, by_time = (pl.evaluate(p, both) for p in (problem, timely))
    assert (by_rate.stages[0].degree, by_time.stages[0].degree) == (1, 2)
    assert by_time.seconds_per_pass < 0.7 * by_rate.seconds_per_pass
    assert by_rate.throughput > by_time.throughput
