"""Placement for training: equal to all placements through the simulator, anytime, and with reasons."""

from dataclasses import replace
from itertools import product
from threading import Event

import numpy as np
import pytest
from small_problems import every_placement

import pipelab as pl
from pipelab.costs import LayerTimes, TrainingCost
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.training import TrainingResult, schedules_for
from pipelab.engine.training.bounds import TRAINED_BY, RuleBounds, makespans, order_of
from pipelab.engine.training.stages import RankTimes
from pipelab.problem import CostModel
from roofline_oracle import random_model


class Trained(CostModel):
    """Times per type of GPU, gradients and memory of their own: a cost model as a user may write one."""

    def __init__(self, rng, types):
        self.served = LayerTimes({t: float(rng.choice([1, 2, 3, 5, 7, 11])) for t in types})
        self.back = {t: float(rng.uniform(0.5, 2.5)) for t in types}
        self.weight = {t: float(rng.uniform(0.1, 1.5)) for t in types}
        self.step = float(rng.choice([0, 1e-3]))
        self.kept = float(rng.uniform(0.5, 2.0))

    @property
    def gpu_types(self):
        return self.served.gpu_types

    def stage(self, *asked):
        return self.served.stage(*asked)

    def training_cost(self, problem, report, *, recompute="none", bytes_per_parameter=16):
        forward, first = report.seconds, min(report.gpu_types)  # whatever their sequence
        n = problem.model.work(report.stage.layers)
        back = self.back[first] * forward + (forward if recompute == "full" else 0.0)
        kept = n * self.kept * (0.2 if recompute == "full" else 1.0)
        working = self.kept if recompute == "full" else 0.0
        weight, state = self.weight[first] * forward, n * bytes_per_parameter / 16
        return TrainingCost(forward, back, weight, self.step * n, state, kept, 0.7 * kept, working)


def random_problem(rng, gpus=None, layers=None, most=1):
    """Few heterogeneous GPUs, links that matter, memory that binds as often as not."""
    n, layers = gpus or int(rng.integers(2, 5)), layers or int(rng.integers(3, 6))
    types = [f"t{i}" for i in range(int(rng.integers(1, 4)))]
    tight = rng.random() < 0.6
    room = {t: float(rng.uniform(4, 14)) if tight else 1000.0 for t in types}
    each = [str(rng.choice(types)) for _ in range(n)]
    speeds = np.full((n, n), 0.1)
    if rng.random() < 0.6:
        speeds = rng.choice([0.02, 0.1, 1, 50], size=(n, n))
    latency = np.full((n, n), float(rng.choice([0, 2])))
    np.fill_diagonal(latency, 0)
    gpus = [pl.GPU(t, room[t]) for t in each]
    cluster = pl.Cluster(gpus, speeds.tolist(), latency_ms=latency.tolist())
    factors = tuple(rng.choice([1.0, 1.5], size=layers)) if rng.random() < 0.3 else None
    model = pl.Model("random", layers, 256, 1024, 0.001, work_factors=factors)
    batch, microbatches = int(rng.integers(1, 3)), int(rng.integers(1, 8))
    load = pl.Workload(64, batch, "training", microbatches=microbatches)
    return pl.Problem(cluster, model, load, Trained(rng, types), most, same_type_stages=False)


def exists(schedule, ranks, microbatches):
    try:
        pl.schedule(schedule, ranks, microbatches)
    except pl.errors.InvalidValue:
        return False
    return True


def least(problem, schedule, recompute=None):
    """The least step time of all placements that fit, by the simulator; infinite where none does."""
    best, microbatches = np.inf, problem.workload.microbatches
    for placement in every_placement(problem):
        if exists(schedule, len(placement), microbatches):
            try:
                step = pl.timeline_of(problem, placement, schedule=schedule, recompute=recompute)
            except pl.errors.InvalidPlacement:
                continue
            if not step.shortfall:
                best = min(best, step.timeline.iteration_time)
    return best


def transformer_problem(rng):
    """Heavy embedding and head, layers that differ; memory that binds as often as not."""
    layers, kinds = 6, ["H100-SXM", "A100-SXM-80", "L4"]
    model = replace(random_model(rng, layers), precision="bf16", latent=None, vocab=60_000)
    model = replace(model, tied_embeddings=bool(rng.random() < 0.7), experts_per_token=1)
    room = 18e-9 * model.parameters() * rng.choice([0.4, 0.6, 3.0])
    gpus = [pl.GPU(str(kind), float(room * rng.uniform(0.7, 1.4))) for kind in rng.choice(kinds, 3)]
    speeds = rng.choice([0.5, 5, 50], size=(3, 3)).tolist()
    load = pl.Workload(256, 1, "training", microbatches=int(rng.integers(6, 9)))
    return pl.Problem(pl.Cluster(gpus, speeds), model, load, pl.Roofline())


def compare(seed, schedule="1F1B", recompute=None, of=random_problem, **kind):
    """A random problem solved and tried out; how it ended."""
    problem = of(np.random.default_rng(seed), **kind)
    expected = least(problem, schedule, recompute)
    result = pl.solve(problem, objective="step_time", schedule=schedule, recompute=recompute)
    if expected == np.inf:
        assert result.status == "infeasible", (seed, schedule, result.sentence)
        return "infeasible"
    assert result.status == "optimal", (seed, schedule, result.sentence)
    assert result.objective.value == pytest.approx(expected, rel=2e-9), (seed, schedule)
    assert not result.step.shortfall
    return "optimal"


@pytest.mark.slow
@pytest.mark.parametrize("schedule", TRAINED_BY)
def test_no_placement_is_faster(schedule):
    for seed in range(2):
        compare(seed, schedule, gpus=3, layers=4)


@pytest.mark.quick(1)
@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", [1, 3, 0, 2, *range(4, 30)])
def test_no_placement_is_faster_wherever_a_schedule_has_the_head(seed):
    """Named schedules of several chunks, down and back or round; transformers with heavy ends, and odd layers."""
    of = [transformer_problem, lambda rng: random_problem(rng, gpus=3, layers=7)]
    for i, schedule in enumerate(["ZBV", "DualPipeV", "Interleaved1F1B"]):
        recompute = ["auto", None][(seed + i) % 2]
        compare(seed, schedule, recompute, of=of[(seed + i) // 2 % 2])


@pytest.mark.parametrize(
    ("seeds", "options"),
    [
        ((3, 5, 6, 8), {"recompute": "auto", "gpus": 2, "layers": 4}),
        ((0, 1, 3), {"gpus": 4, "layers": 2, "most": 2}),
    ],
    ids=["recomputed where it must be", "several GPUs per stage"],
)
def test_no_placement_is_faster_either_where_there_is_more_choice(seeds, options):
    assert "optimal" in [compare(seed, **options) for seed in seeds]


def test_classes_of_gpus_that_are_merged_bound_every_placement(monkeypatch):
    """Each group counts with the best that any of its members has; here tables are always too large."""
    from pipelab.engine.training import search

    monkeypatch.setattr(search, "_MOST_CELLS", 0)
    assert [compare(seed, gpus=3, layers=4) for seed in (2, 4)] == ["optimal"] * 2


@pytest.mark.slow
def test_a_model_without_training_takes_multiples():
    tiny = pl.load_case("tiny", link_units="tokens")
    problem = replace(tiny, workload=replace(tiny.workload, phase="training", microbatches=8))
    result = pl.solve(problem, objective="step_time")
    assert result.objective.value == pytest.approx(least(problem, "1F1B"))
    assert result.recompute is None
    with pytest.raises(pl.errors.InvalidValue, match="expected a cost model that knows"):
        pl.solve(problem, objective="step_time", recompute="full")


@pytest.mark.slow
def test_the_best_schedule_is_the_best_of_all():
    problem = random_problem(np.random.default_rng(2), gpus=3, layers=4)
    each = {}
    for name in TRAINED_BY:
        result = pl.solve(problem, objective="step_time", schedule=name)
        if result.placement is not None:
            each[name] = result.objective.value
    best = pl.solve(problem, objective="step_time", schedule="best")
    assert best.status == "optimal"
    assert best.objective.value == pytest.approx(min(each.values()))
    assert each[best.schedule] == pytest.approx(min(each.values()))
    table = schedules_for(problem, best)
    assert table.seconds_per_step[table.fits].min() == pytest.approx(best.objective.value)
    assert table.seconds_per_step[table.fits].is_monotonic_increasing
    assert table.reason[table.seconds_per_step.isna()].str.contains("microbatches").all()


def test_each_stage_recomputes_only_where_it_must():
    """Of all choices per stage, none that fits is quicker than "auto"."""
    problem = random_problem(np.random.default_rng(8), gpus=3, layers=5)
    placement = pl.Placement.of([(2, (0,)), (2, (1,)), (1, (2,))])

    def with_memory(gb):
        gpus = [replace(g, memory_gb=gb) for g in problem.cluster.gpus]
        return replace(problem, cluster=pl.Cluster(gpus, [[0.1] * 3] * 3))

    *_, second, most = sorted(pl.timeline_of(with_memory(1000.0), placement).memory_gb)
    tight, times = with_memory((second + most) / 2), []
    auto = pl.timeline_of(tight, placement, recompute="auto")
    for each in product(("none", "full"), repeat=3):
        step = pl.timeline_of(tight, placement, recompute=each)
        assert step.recompute == each
        if not step.shortfall:
            times.append(step.timeline.iteration_time)
    assert set(auto.recompute) == {"none", "full"}
    assert not auto.shortfall
    assert auto.timeline.iteration_time == min(times)


def chain_bounds(rule, times, first, comm):
    """What the terms of a rule bound for K placements: every stage, every run of ranks, and the ways to and from."""
    ranks, parts = (
        times.shape[1],
        rule.parts(RankTimes(np.concatenate([times, 0 * times[:1], first]))),
    )
    passed = parts.both.copy()  # to a rank and back to the first, for what lies between them
    passed[1:] += 2 * comm
    passed = passed.cumsum(axis=0)
    value, beyond = np.zeros((2, times.shape[2]))
    for i in reversed(range(ranks)):
        mine, most = parts.take(i), [rule.window(ranks, rank) for rank in range(ranks)]
        own = rule.alone(mine, most[i], beyond).copy()
        for j in range(i, ranks if rule.chunks == 1 else i):
            inside, through = (passed[k] - passed[i] + mine.both for k in (j, -1))
            found = rule.run((most[i], most[j]), mine.forward, mine.both, inside, through)
            own[-1] = np.maximum(own[-1], found)
        hop = comm[i] if i < ranks - 1 else 0 * comm[:1].sum(axis=0)
        value = np.maximum(own, mine.lead + rule.hops[:, None] * hop + value)
        if i:
            beyond = 2 * comm[i - 1] + mine.both + beyond
    if rule.split:
        value[-1] += parts.weight[0]
    return value.max(axis=0)


@pytest.mark.parametrize("schedule", TRAINED_BY)
def test_bounds_hold_and_many_are_simulated_as_one(schedule):
    rng = np.random.default_rng(0)
    for ranks, microbatches in ((1, 4), (3, 6), (4, 8), (5, 5)):
        if not exists(schedule, ranks, microbatches):
            continue
        order, rule = (
            pl.schedule(schedule, ranks, microbatches),
            RuleBounds(schedule, 5, microbatches),
        )
        at, count, columns = np.array(order.stage_rank), 60, columns_of(order)
        times = rng.random((3, order.stages, count)) ** rng.choice([0.3, 1, 4])
        held = [np.flatnonzero(at == rank) for rank in range(ranks)]
        whole = np.stack([times[:, mine].sum(axis=1) for mine in held], axis=1)
        hops = rng.random((ranks, ranks, count)) * rng.choice([0, 0.1, 1], size=count)
        hops = np.maximum(hops, hops.transpose(1, 0, 2))
        comm = np.where((at[:-1] != at[1:])[:, None], hops[at[:-1], at[1:]], 0.0)
        ends = makespans(columns, times, comm)
        chain = hops[range(ranks - 1), range(1, ranks)]
        bounds = chain_bounds(rule, whole, times[:, [mine[0] for mine in held]], chain)
        assert (bounds <= ends * (1 + 1e-9)).all()
        # a rank's own work is never forgotten
        assert (bounds >= microbatches * whole.sum(axis=0).max(axis=0) * (1 - 1e-9)).all()
        forward, back, weight = times[:, :, 0].tolist()
        hops, kept = comm[:, 0].tolist(), {"activation": forward, "weight_activation": back}
        costs = pl.StageCosts(forward, back, weight, hops, **kept)
        alone = pl.simulate(order, costs, transfers="queued")
        assert ends[0] == pytest.approx(alone.makespan, rel=1e-12)
        pairs = zip(columns.held_counts, held, strict=True)
        peaks = [(counts @ times[:2, mine, 0].ravel()).max() for counts, mine in pairs]
        assert peaks == pytest.approx(alone.peak_memory)


def real_problem(counts, microbatches=32, sequence=4096):
    memory = {t: float(pl.hardware.gpus().memory_gb[t]) for t in counts}
    load = pl.Workload(sequence, 1, "training", microbatches=microbatches)
    cluster = pl.Cluster.from_counts(counts, memory, 12.5)
    return pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline())


def test_a_search_ends_whatever_the_rounding():
    """m · (s / m) may be less than s: a search that compared these two made the same table for ever."""
    for microbatches in (3, 5, 6, 7, 11):
        problem = real_problem({"A100-SXM-80": 2}, microbatches, 2048)
        options = {"schedule": "ZBH1", "bytes_per_parameter": 16, "time_limit": 20}
        assert pl.solve(problem, objective="step_time", **options).status == "optimal"


@pytest.mark.slow
def test_stopped_early_keeps_its_best_and_says_how_far_off():
    problem = real_problem({"A100-SXM-80": 6, "H100-SXM": 6, "L40S": 6, "A10G": 6}, 64)

    def near(now):
        return now.incumbent and now.bound and now.incumbent - now.bound < 0.5 * now.incumbent

    result = pl.solve(problem, objective="step_time", recompute="auto", stop=near)
    assert (result.status, result.stopped_by) == ("feasible", "stop")
    assert 0 < result.gap < 0.5
    assert result.objective.bound < result.objective.value
    assert not result.step.shortfall
    few = real_problem({"A100-SXM-80": 3, "H100-SXM": 3, "L40S": 3}, 24)
    loose = pl.solve(few, objective="step_time", recompute="auto", gap=0.5)
    assert (loose.stopped_by, 0 < loose.gap <= 0.5) == ("gap limit", True)
    stop, seen = Event(), []

    def first(progress):
        seen.append(progress.incumbent)
        stop.set()

    result = pl.solve(few, objective="step_time", stop=stop, on_progress=first)
    assert (result.status, result.stopped_by) == ("feasible", "stop")
    assert result.objective.value == pytest.approx(seen[-1])
    assert result.objective.bound > 0
    ended = pl.solve(problem, objective="step_time", stop=stop)
    assert ended.status == "unknown"


def test_what_the_result_says_is_the_simulator_s():
    problem = real_problem({"A100-SXM-80": 2, "H100-SXM": 1}, 2)
    result = pl.solve(problem, objective="step_time", schedule="ZB-H1", recompute="full")
    assert isinstance(result, TrainingResult)
    step = pl.timeline_of(problem, result, schedule="ZBH1", recompute="full")
    assert step.timeline.schedule.microbatches == 2
    assert result.objective.value == step.timeline.iteration_time
    assert result.throughput == step.rate == 2 * 4096 / result.objective.value
    assert (result.schedule, set(result.recompute)) == ("ZBH1", {"full"})
    assert result.bubble == step.timeline.bubble_fraction
    assert result.to_dict()["objective"]["seconds_per_step"] == result.objective.value


def test_nothing_fits_has_a_remedy_that_helps():
    problem = real_problem({"A10G": 8}, 16)
    result = pl.solve(problem, objective="step_time")
    assert result.status == "infeasible"
    assert "with recompute='auto' there are placements that fit" in result.reason
    assert pl.solve(problem, objective="step_time", recompute="auto").status == "optimal"
    hopeless = pl.solve(real_problem({"A10G": 2}), objective="step_time", recompute="auto")
    state = 18 * pl.load_model("Llama-3-8B").parameters() / 1e9
    assert f"the state of all parameters takes {state:.4g} GB" in hopeless.reason
    bare = real_problem({"A10G": 4}, 16, 1024)
    fewer = pl.solve(bare, objective="step_time", bytes_per_parameter=6, recompute="auto")
    assert fewer.status == "optimal"
    absent = pl.solve(real_problem({"A10G": 2}, 1), objective="step_time", schedule="DualPipeV")
    assert absent.status == "infeasible"
    assert absent.reason


def test_a_schedule_that_is_too_large_is_refused_or_left_out_and_said(monkeypatch):
    problem = random_problem(np.random.default_rng(2), gpus=4, layers=4)
    problem = replace(problem, workload=replace(problem.workload, microbatches=20))
    order_of.cache_clear()
    # 1F1B on three ranks, not on four
    monkeypatch.setattr("pipelab.engine.schedules.named_schedules.LARGEST_SIZE", 70)
    try:
        with pytest.raises(pl.errors.TooLarge, match="1F1B: 80 forwards"):
            pl.solve(problem, objective="step_time", schedule="1F1B")
        result = pl.solve(problem, objective="step_time", schedule="best")
    finally:
        order_of.cache_clear()
    assert (result.status, result.stopped_by) == ("feasible", "list limit")
    assert 0 < result.objective.bound < result.objective.value


def test_a_rank_deals_its_layers_out_to_chunks():
    """One GPU is three times as fast as the other: it has three of four layers, if chunks leave the other one layer."""
    cluster = pl.Cluster.from_counts({"fast": 1, "slow": 1}, 1000, 50)
    costs, load = LayerTimes({"fast": 1, "slow": 3}), pl.Workload(64, 1, "training", microbatches=8)
    one, four, seven = (
        pl.Problem(cluster, pl.Model("m", n, 256, 1024, 0.001), load, costs) for n in (1, 4, 7)
    )
    for problem, schedule, layers in ((four, "ZBH1", {1, 3}), (seven, "ZBV", {2, 5})):
        found = pl.solve(problem, objective="step_time", schedule=schedule)
        assert {len(stage.layers) for stage in found.placement.stages} == layers
    none = pl.solve(one, objective="step_time", schedule="ZBV")
    assert (none.status, "and the model 1 layers" in none.reason) == ("infeasible", True)
    assert pl.timeline_of(four, pl.Placement.of([(1, (0,)), (3, (1,))]), schedule="ZBV").shortfall


@pytest.mark.parametrize(
    ("phase", "options", "message"),
    [
        ("training", {"objective": "latency"}, "phase = 'training': expected another"),
        ("prefill", {"objective": "step_time"}, "phase = 'prefill': expected 'training'"),
        ("training", {"schedule": "Inference"}, "schedule with backwards"),
        ("training", {"schedule": "2F2B"}, "'2F2B' is not known"),
        ("training", {"recompute": "some"}, "recompute = 'some': expected one of none"),
        ("training", {"method": "joint"}, "method = 'joint'"),
    ],
)
def test_training_and_serving_are_kept_apart(phase, options, message):
    problem = real_problem({"H100-SXM": 2}, 4)
    problem = replace(problem, workload=replace(problem.workload, phase=phase))
    with pytest.raises(pl.PipelabError, match=message):
        pl.solve(problem, **{"objective": "step_time"} | options)
    if phase == "training":
        for refused in (pl.deploy, pl.trade_off):
            with pytest.raises(pl.errors.InvalidValue, match="phase = 'training': expected anothe"):
                refused(problem)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda cost, last: cost._replace(forward=0.0, backward_input=0.0, backward_weight=0.0),
            "more than 0 seconds",
        ),
        (lambda cost, last: cost._replace(backward_input=-1.0), "at least 0"),
        # Layers that the model calls identical must cost the same wherever they are.
        (
            lambda cost, last: cost._replace(forward=cost.forward * (2 if last else 1)),
            r"Headed\.training_cost: step",
        ),
    ],
)
def test_a_cost_model_that_cannot_be_is_refused(change, words):
    class Headed(Trained):
        def training_cost(self, problem, report, **recipe):
            cost = super().training_cost(problem, report, **recipe)
            return change(cost, problem.model.layers - 1 in report.stage.layers)

    problem = random_problem(np.random.default_rng(0), gpus=2, layers=4)
    twins = pl.Cluster([pl.GPU("t", 1000.0)] * 2, [[50.0] * 2] * 2)
    load = replace(problem.workload, microbatches=8)
    costs = Headed(np.random.default_rng(0), ["t"])
    with pytest.raises(pl.errors.InvalidValue, match=words):
        pl.solve(replace(problem, cluster=twins, costs=costs, workload=load), objective="step_time")
