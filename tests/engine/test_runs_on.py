"""`runs_on`: the best among the plans that an engine can start, against all placements that `pl.settings` accepts."""

import dataclasses
import math

import node_oracle
import numpy as np
import pytest
import test_step_time
from small_problems import divided, every_placement, hourly, mask_of, of_mask, per_million

import pipelab as pl
from pipelab.costs import filled
from pipelab.engine.runs_on import as_engine_runs
from pipelab.hardware.engine_rules import known_rules
from pipelab.io.serving.demands import check
from pipelab.io.serving.engine_plan import EnginePlan

SERVING = [name for name, rules in known_rules().items() if not rules.trains]
TRAINING = [name for name, rules in known_rules().items() if rules.trains]
OBJECTIVES = ("throughput", "throughput", "rate", "latency", "cost")
MAKERS = {"B": "MI300X", "C": "M3-Max-40c"}
# By day the first three; of these, 6 has stages of several GPUs by a cost model of one's own.
SEEDS = (2, 3, 6, 0, 1, 4, 5, *range(7, 300))


def as_filled(problem, engine):
    """The problem as an engine fills pipelines, written down once more."""
    filling, number = {
        "vLLM": ("by_stages", 0),
        "TensorRT-LLM": ("by_stages", 0),
        "llama.cpp": ("micro_batches", 5) if problem.workload.phase == "prefill" else ("one", 0),
        "transformers": ("one", 0),
    }.get(engine, ("synchronous", 0))
    return dataclasses.replace(problem, costs=filled(problem.costs, filling, number))


def accepted(problem, engines):
    """Every plan that `settings` accepts, by engine, as it evaluates it."""
    found = {engine: [] for engine in engines}
    for placement in every_placement(problem):
        for engine in engines:
            try:
                plan = EnginePlan.of(as_filled(problem, engine), placement, engine, None)
                check(plan)
            except (pl.errors.InvalidPlacement, pl.errors.NotApplicable):
                continue
            found[engine].append((placement, plan.evaluation))
    return found


class CutsAll(pl.LayerTimes):
    """A cost model of one's own: any GPUs cut layers among them, whatever the model's heads."""

    def stage(self, model, workload, gpus, layers, batch_split):
        cost = super().stage(model, workload, gpus, layers, batch_split)
        return cost._replace(degree=len(gpus))


def cutting_all(problem, seed):
    """The same with `CutsAll`, by which alone an engine's rules on heads and sizes of stages matter."""
    rng = np.random.default_rng([50, seed])  # with 50, rules of both kinds bind by day
    names = sorted({gpu.type for gpu in problem.cluster.gpus})
    costs = CutsAll({name: float(rng.uniform(1, 4)) for name in names})
    heads = int(rng.choice([3, 4, 5, 6]))
    model = dataclasses.replace(problem.model, layers=4, heads=heads, kv_heads=1, latent=None)
    room = float(model.weight_gb(range(4)) * rng.choice([0.5, 0.7, 1.5]))
    gpus = tuple(dataclasses.replace(gpu, memory_gb=room) for gpu in problem.cluster.gpus)
    cluster = dataclasses.replace(problem.cluster, gpus=gpus)
    most = int(rng.integers(2, 5))
    return dataclasses.replace(
        problem, cluster=cluster, model=model, costs=costs, max_gpus_per_stage=most
    )


def in_machines(cluster, seed):
    """Two thirds of clusters say which machine a node or a GPU without one is in: two of them, or all are in one."""
    rng = np.random.default_rng([53, seed])
    if seed % 3 == 0:
        return cluster
    number, several = {}, int(rng.integers(1, 3))
    gpus = [
        dataclasses.replace(g, machine=f"m{number.setdefault(g.node or i, rng.integers(several))}")
        for i, g in enumerate(cluster.gpus)
    ]
    index = tuple(rng.permutation(9)[: len(gpus)].tolist())
    return dataclasses.replace(cluster, gpus=tuple(gpus), index=index)


def random_problem(seed):
    """Nodes of GPUs of one maker or several, with prices; links, memory and heads bind somewhere."""
    rng = np.random.default_rng([39, seed])
    problem = node_oracle.random_problem(
        seed, gpus=5 if seed % 10 == 0 else 4, layers=4, costs="roofline",
        max_gpus_per_stage=int(rng.integers(2, 5)),
    )  # fmt: skip
    names = MAKERS if rng.random() < 0.4 else {}
    facts = {names.get(name, name): own for name, own in problem.costs.gpus.items()}
    price = {name: round(float(rng.uniform(0.5, 3)), 2) for name in facts}
    gpus = [
        dataclasses.replace(g, type=kind, usd_per_hour=price[kind])
        for g in problem.cluster.gpus
        for kind in [names.get(g.type, g.type)]
    ]
    costs = dataclasses.replace(problem.costs, gpus=facts, tensor_parallel=rng.random() < 0.9)
    more, engines = float(rng.choice([1, 1, 2, 4])), (0.0, 1.2, 1.2, 4.5)[seed % 4]
    gpus = [dataclasses.replace(g, memory_gb=more * g.memory_gb + engines) for g in gpus]
    cluster = dataclasses.replace(problem.cluster, gpus=tuple(gpus))
    cluster, model = in_machines(cluster, seed), problem.model
    if rng.random() < 0.8:
        model = dataclasses.replace(model, kv_precision="bf16")
    problem = dataclasses.replace(problem, cluster=cluster, costs=costs, model=model)
    if seed % 4 == 2:
        problem = cutting_all(problem, seed)
    return problem.with_in_flight(None) if rng.random() < 0.5 else problem


def value_of(problem, objective, engine, placement, evaluation):
    """What the best has most or least of, from the evaluation of the plan."""
    if objective == "rate":
        full = as_engine_runs(problem.with_in_flight(problem.workload.in_memory), engine)
        try:
            return pl.evaluate(full, placement).rate
        except (
            pl.errors.InvalidPlacement
        ):  # an engine that has fewer in flight than it is told starts it
            return -math.inf
    if objective == "latency":
        return -evaluation.seconds_per_pass
    if objective == "cost":
        return -per_million(problem, placement.gpus, evaluation.attainable)
    return evaluation.attainable


@pytest.mark.quick(1)
@pytest.mark.daily(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_serving_equals_brute_force(seed, tmp_path):
    problem = random_problem(seed)
    objective, found = OBJECTIVES[seed % len(OBJECTIVES)], accepted(problem, SERVING)
    for engine in SERVING:
        values = [value_of(problem, objective, engine, *plan) for plan in found[engine]]
        values = [value for value in values if value > -math.inf]
        try:
            result = pl.solve(problem, objective=objective, runs_on=engine)
        except pl.errors.NotApplicable:
            assert not values
            continue
        assert result.status == ("optimal" if values else "infeasible"), (engine, result)
        if values:
            goal = result.throughput if result.objective is None else -result.objective.value
            assert goal == pytest.approx(max(values), rel=3e-6), (engine, objective)
            saved = pl.save(result, tmp_path / "plan.json")
            for read_for in (problem, result.problem):
                assert pl.load_placement(saved, read_for) == result.placement
            assert pl.settings(problem, result, engine).layers
            own = pl.settings(result.problem, result, engine)
            assert own.tensor_parallel_size == len(result.placement.stages[0].gpus)
            used, cluster = result.placement.gpus, problem.cluster
            assert len(own.hosts) == len({cluster.machine_of[g] for g in used})
            if cluster.index:
                places = sorted((cluster.gpus[g].machine, cluster.index[g]) for g in used)
                assert places == sorted((host.name, n) for host in own.hosts for n in host.gpus)


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", SEEDS[:120])
def test_deployments_equal_brute_force(seed):
    problem = dataclasses.replace(random_problem(seed), max_gpus_per_stage=2)
    rng, engine = np.random.default_rng(seed), SERVING[seed % len(SERVING)]
    plans = accepted(problem, [engine])[engine]
    each = [0.0] * (1 << len(problem.cluster))
    for placement, evaluation in plans:
        mask = mask_of(placement.gpus)
        each[mask] = max(each[mask], evaluation.attainable)
    best = divided(each)
    most = best[-1]
    load = most * float(rng.uniform(0.2, 1.0)) if seed % 2 else 0.0
    try:
        result = pl.deploy(problem, load, runs_on=engine)
    except pl.errors.NotApplicable:
        assert not plans
        return
    if not most:
        assert result.status == "infeasible", result
        return
    # by stages, a deployment's bound is that of pipelines that may have more in flight
    proven = result.status == "optimal"
    assert proven or as_filled(problem, engine).costs.filling in ("by_stages", "micro_batches"), (
        result
    )
    if not proven:
        assert result.bound >= most * (1 - 3e-6) or load
    elif load:
        enough = [mask for mask, rate in enumerate(best) if rate >= load * (1 - 1e-9)]
        least = min(hourly(problem, of_mask(mask)) for mask in enough)
        assert result.usd_per_hour == pytest.approx(least, rel=1e-6)
    else:
        assert result.throughput == pytest.approx(most, rel=3e-6)
    assert len(pl.settings(problem, result, engine)) == result.count


def random_training(seed):
    """Transformers on nodes of GPUs, memory that binds as often as not; or another cost model, one GPU per stage."""
    rng = np.random.default_rng([40, seed])
    if seed % 3 == 0:
        return test_step_time.random_problem(rng, layers=4)
    nodes = [f"node {i}" for i in np.sort(rng.integers(0, 2, 4)).tolist()]
    kinds = {name: str(rng.choice(["A100-SXM-80", "L40S", "MI300X"])) for name in set(nodes)}
    model = pl.hardware.Transformer(
        "random", 4, 1024, 2048, int(rng.choice([4, 6])), 2, 128, int(rng.choice([1000, 60_000]))
    )
    state = 20 * model.parameters(range(4)) / 1e9
    room = state * rng.choice([0.4, 0.7, 1.5, 6.0])
    gpus = [pl.GPU(kinds[n], float(room), None, n, float(rng.choice([30, 300]))) for n in nodes]
    links = 10.0 ** rng.uniform(-0.5, 2, (4, 4))
    inside = {n: float(rng.choice([30, 300])) for n in set(nodes)}
    gpus = [dataclasses.replace(g, node_gb_per_s=inside[g.node]) for g in gpus]
    load = pl.Workload(
        int(rng.choice([256, 2048])), int(rng.choice([1, 2])), "training",
        microbatches=int(rng.integers(1, 7)),
    )  # fmt: skip
    return pl.Problem(pl.Cluster(gpus, links), model, load, pl.Roofline(memory_share=1.0))


def least_step(problem, engine, schedules, modes):
    """The least time of a step that the engine accepts."""
    best, run = math.inf, as_engine_runs(problem, engine)
    for placement in every_placement(problem):
        for schedule in schedules:
            for mode in modes:
                try:
                    step = pl.timeline_of(
                        run, placement, training=True, schedule=schedule, recompute=mode
                    )
                    plan = EnginePlan.of(problem, placement, engine, None)
                    order, again = step.timeline.schedule, step.recompute or ()
                    check(dataclasses.replace(plan, schedule=order, recomputed=again))
                except (pl.errors.InvalidPlacement, pl.errors.NotApplicable):
                    continue
                except pl.errors.InvalidValue as error:
                    if not str(error).startswith("schedule"):
                        raise
                    continue
                if not step.shortfall:
                    best = min(best, step.timeline.iteration_time)
    return best


@pytest.mark.quick(1)
@pytest.mark.daily(3)
@pytest.mark.parametrize("seed", range(300))
def test_training_equals_brute_force(seed):
    problem = random_training(seed)
    engine = TRAINING[seed % len(TRAINING)]
    trains = hasattr(problem.costs, "training_cost")
    again = (["none", "auto"][seed // 2 % 2]) if trains else None
    names = ("1F1B", "Interleaved1F1B", "1F1B", "GPipe", "ZBH1", "LoopedBFS")
    schedule = names[seed // 4 % (2 if engine == "Megatron" else 6)]
    modes = ("none", "full") if again == "auto" else (again,)
    least = least_step(problem, engine, [schedule], modes)
    asked = {"objective": "step_time", "schedule": schedule, "recompute": again}
    try:
        result = pl.solve(problem, runs_on=engine, **asked)
    except pl.errors.NotApplicable:
        assert least == math.inf
        return
    assert result.status == ("infeasible" if least == math.inf else "optimal"), result
    if least < math.inf:
        assert result.objective.value == pytest.approx(least, rel=1e-6)
        assert pl.settings(problem, result, engine).layers


def fleet(counts, phase="decode", batch=16, model="Llama-3-70B"):
    """Nodes of up to eight GPUs of one type."""
    cluster = pl.hardware.cluster_of_counts(counts, 8, 100)
    load = pl.Workload(1000, batch, phase, output_tokens=200)
    return pl.Problem(cluster, pl.load_model(model), load, pl.Roofline())


@pytest.mark.slow
def test_the_cost_of_the_rules_is_said_and_both_optima_are_proven():
    problem = fleet({"L40S": 1, "L4": 4}, batch=8, model="Qwen2.5-32B")
    kept, free = pl.solve(problem, runs_on="vLLM"), pl.solve(problem)
    with pytest.raises(pl.errors.NotApplicable):
        pl.settings(problem, free, "vLLM")
    cost = kept.cost_of_rules()
    assert cost.share == pytest.approx(1 - kept.throughput / free.throughput)
    assert cost.share > 0.001
    assert kept.to_dict()["runs_on"] == "vLLM"
    several, all_plans = pl.deploy(problem, runs_on="vLLM"), pl.deploy(problem)
    assert several.status == all_plans.status == "optimal"
    share = 1 - several.throughput / all_plans.throughput
    assert several.cost_of_rules().share == pytest.approx(share)
    with pytest.raises(pl.errors.InvalidValue, match="found with runs_on"):
        free.cost_of_rules()
    with pytest.raises(pl.errors.InvalidValue, match="knows no engine's rules"):
        pl.certificate(kept)


def test_batches_and_the_engine_are_chosen_together():
    sizes, counts = (4, 16, 64), {"A100-SXM-80": 1, "L4": 2}
    each = [pl.solve(fleet(counts, batch=b, model="Llama-3-8B"), runs_on="SGLang") for b in sizes]
    result = pl.solve(fleet(counts, model="Llama-3-8B"), runs_on="SGLang", batches=sizes)
    assert result.status == "optimal"
    assert result.throughput == pytest.approx(max(r.throughput for r in each))
    most = pl.solve(fleet(counts, model="Llama-3-8B"), runs_on="llama.cpp", batches=(64, 257))
    assert (most.status, most.problem.workload.batch_size) == ("optimal", 64)


def test_what_no_engine_starts_is_an_answer_with_its_reason():
    problem = fleet({"MI300X": 2})
    for search in (pl.solve, pl.deploy):
        found = search(problem, runs_on="TensorRT-LLM")
        assert found.status == "infeasible"
        assert "MI300X" in found.sentence
        found = search(fleet({"L4": 2}, batch=257, model="Llama-3-8B"), runs_on="llama.cpp")
        assert "256 sequences" in found.sentence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs_on": "vllm"}, "did you mean 'vLLM'"),
        ({"runs_on": "vLLM", "method": "even"}, "'auto' or 'aggregated'"),
        ({"runs_on": "vLLM", "objective": "step_time"}, "Megatron and torchtitan train"),
        (
            {"runs_on": "Megatron", "objective": "step_time", "schedule": "ZBH1"},
            "one that Megatron has: 1F1B, Interleaved1F1B",
        ),
    ],
)
def test_what_an_engine_is_not_asked_for_is_refused(options, message):
    with pytest.raises(pl.PipelabError, match=message):
        pl.solve(random_training(1), **options)


@pytest.mark.slow
def test_the_best_schedule_is_one_that_the_engine_has():
    asked = {"objective": "step_time", "runs_on": "torchtitan"}
    best, *each = (
        pl.solve(random_training(5), schedule=name, **asked)
        for name in ("best", "1F1B", "GPipe", "ZBH1", "ZBH2")
    )
    least = min(r.objective.value for r in each if r.placement is not None)
    assert best.objective.value == pytest.approx(least)
    assert pl.settings(best.problem, best, "torchtitan").layers


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective",
    ["cost", *(pytest.param(o, marks=pytest.mark.nightly) for o in ("throughput", "latency"))],
)
def test_llama_cpp_has_no_more_stages_than_devices(objective):
    """17 layers on GPUs that hold one each, and it takes 15 of them; larger ones hold two."""

    def problem(large):
        gpus = [pl.GPU("T4", 1.5, 0.3)] * 20 + [pl.GPU("L4", 2.5, 1.0)] * large
        cluster = pl.Cluster(gpus, np.full((len(gpus), len(gpus)), 1e3))
        model = pl.Model("many", 17, 1000, 4000, 1.0)
        times = pl.LayerTimes({"T4": 10.0, "L4": 10.0})
        return pl.Problem(cluster, model, pl.Workload(100, 1), times, 1)

    few, more = problem(0), problem(8)
    for engine, status in (("llama.cpp", "infeasible"), ("vLLM", "optimal")):
        assert pl.solve(few, objective=objective, runs_on=engine).status == status
        assert pl.deploy(few, runs_on=engine).status == status
    found = pl.solve(more, objective=objective, runs_on="llama.cpp")
    assert found.status == "optimal"
    assert len(found.placement) <= 15
    if objective == "cost":  # the fewest dear ones
        assert sorted(len(stage.layers) for stage in found.placement.stages) == [1] * 13 + [2] * 2
    several = pl.deploy(more, runs_on="llama.cpp")
    assert (several.status, several.count) == ("optimal", 2)
    for plan in (found, several):
        pl.settings(more, plan, "llama.cpp")


@pytest.mark.parametrize("engine", SERVING)
def test_an_answer_says_whose_stage_times_it_has_and_which_limit_leaves_none(engine):
    model = pl.load_model("Llama-3-8B")
    pool = pl.Cluster.from_counts({"A100-SXM-80": 1}, {"A100-SXM-80": 80.0}, 12.5)
    problem = pl.Problem(pool, model, pl.Workload(512, 1), pl.Roofline())
    for costs in ("vLLM", "llama.cpp"):
        timed = dataclasses.replace(problem, costs=pl.Roofline(engine=costs))
        for answer in (pl.solve(timed, runs_on=engine), pl.deploy(timed, runs_on=engine)):
            assert (f"Stage times are those of {costs}" in answer.sentence) == (costs != engine)
            assert "Stage times" not in answer.any_engine().sentence
    many = pl.Cluster.from_counts({"T4": 20}, {"T4": 3.0}, 12.5)
    answer = pl.solve(dataclasses.replace(problem, cluster=many), runs_on=engine)
    most = known_rules()[engine].gpus
    if most is not None:
        assert f"at most {most} GPUs in a pipeline" in answer.reason
