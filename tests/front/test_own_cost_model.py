"""The cost model of `docs/adding.md` in everything that takes a problem; and what all cost models have in common."""

import ast
import copy
import dataclasses
import pickle
import re
from itertools import combinations

import numpy as np
import pytest

import oracle
import pipelab as pl
from clone import parsed_package, text_of
from pipelab.costs import WrappedCosts
from pipelab.engine.instance import BestModeCosts, without_node
from pipelab.engine.runs_on import EngineStages
from pipelab.engine.speed_costs import with_speeds
from pipelab.flows import exhaustive_flow
from pipelab.problem import CostModel


def of_the_page():
    (code,) = re.findall(r"```python\n(.*?)```", text_of("docs/adding.md"), flags=re.S)
    space = {"__name__": __name__}
    exec(code, space)
    return space["FixedAndPerLayer"]


Own = of_the_page()
FixedAndPerLayer = Own  # by this name pickles find it


def random_problem(seed):
    """Memory, links and the fixed time bind in some; every GPU has a price."""
    rng = np.random.default_rng([61, seed])
    problem = oracle.random_problem(seed, layers=4, gpus=3, link_units="tokens", batch_split="even")
    slowest = 1_000_000 / problem.model.layers / 100  # 100 tokens/s with all layers
    times = {name: slowest / float(rng.choice([0.5, 1.0, 2.0, 3.0])) for name in "ABC"}
    costs = Own(
        fixed_ms=float(rng.choice([0.0, 0.5, 2.0])) * slowest * problem.workload.tokens / 1000,
        layer_ms=times,
        kept_gb=float(rng.choice([0.0, 0.3])) * problem.model.layer_weight_gb,
    )
    gpus = [dataclasses.replace(gpu, usd_per_hour=1.0) for gpu in problem.cluster.gpus]
    cluster = dataclasses.replace(problem.cluster, gpus=tuple(gpus))
    return dataclasses.replace(problem, cluster=cluster, costs=costs)


def rate(problem, gpus, span):
    """Tokens/s of a stage by the page's words, or None where it does not fit."""
    types, model = [problem.cluster.gpus[g] for g in gpus], problem.model
    kept = problem.costs.kept_gb * problem.workload.in_memory
    need = len(span) * (model.layer_weight_gb + kept)
    if any(need > gpu.memory_gb * (1 + 1e-9) for gpu in types):
        return None
    tokens = problem.workload.tokens
    slowest = max(problem.costs.layer_ms[gpu.type] for gpu in types)
    ms = problem.costs.fixed_ms + slowest * len(span) * tokens / 1000
    return len(gpus) * tokens * 1000 / ms


@pytest.fixture
def best(monkeypatch):
    monkeypatch.setattr(oracle, "stage", rate)
    return oracle.best


@pytest.mark.parametrize("seed", range(24))
def test_every_method_finds_what_brute_force_finds(seed, best):
    problem = random_problem(seed)
    truth = best(problem) or 0.0
    for method in ("auto", "joint", "exhaustive"):
        assert (pl.solve(problem, method, "rate").throughput or 0.0) == pytest.approx(truth)
    if not truth:
        return
    alone = pl.solve(problem).throughput
    assert pl.trade_off(problem, "gpus").points[0].throughput == pytest.approx(alone)
    flow = pl.flow(problem, "rate")
    assert flow.throughput == pytest.approx(sum(w.rate for w in exhaustive_flow(problem, True)[1]))
    several = pl.deploy(problem)
    assert several.status == "optimal"
    assert several.throughput >= alone * (1 - 1e-9)


def test_the_explorers_draw_it():
    own = Own(fixed_ms=1.0, layer_ms=dict.fromkeys(pl.Roofline().gpu_types, 2.0))
    explorer = pl.explore_mix("Llama-3-8B", {"L4": 2, "A100-SXM-40": 1}, costs=own)
    problem = explorer.found.result.problem
    assert problem.costs is own
    assert explorer.found.result.status == "optimal"
    names = {"costs": own}
    exec(explorer.code.code, names)
    assert names["result"].problem == problem
    for name in ("Roofline", own):
        explorer.controls.fields["costs"].value = name
        assert (explorer.found.result.problem.costs is own) == (name is own)
    case = pl.explore_mix("tiny", costs=Own(1.0, {"A100": 2.0, "V100": 3.0}))
    assert case.found.result.status == "optimal"
    assert pl.watch_solve(random_problem(2)).result().status == "optimal"


MODELS = {
    "page": lambda: random_problem(2),
    "table": lambda: dataclasses.replace(random_problem(2), costs=oracle.TableCosts(3, True)),
    "linear": lambda: pl.load_case("tiny", max_gpus_per_stage=2),
    "roofline": lambda: pl.Problem(
        pl.load_cluster("helix-single24"),
        pl.load_model("Llama-3-8B"),
        pl.Workload(512, 4, "training", microbatches=4),
        pl.Roofline(prefer="time", copies=False, memory_share=0.7, runs_on="vLLM"),
        2,
    ),
}


def members(cls):
    return {name for name in vars(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", MODELS)
def test_a_wrapper_answers_as_what_it_wraps_also_as_a_copy(name):
    """All that a cost model may be asked for; the engine's two wrappers answer as their copies do."""
    assert members(CostModel) - members(WrappedCosts) == set()
    problem = MODELS[name]()
    costs, gpus = problem.costs, problem.cluster.gpus[:1]
    plain = WrappedCosts(costs=costs)
    for one in members(CostModel):
        if not callable(getattr(costs, one)):
            assert getattr(plain, one) == getattr(costs, one), one
    assert plain.for_training().costs == costs.for_training()

    def answers(costs):
        span = range(problem.model.layers)
        stage = costs.stage(problem.model, problem.workload, gpus, span, "even")
        return stage, costs.memory_parts(problem, gpus[0], span), costs.mixes_as_slowest(problem)

    assert answers(plain) == answers(costs)
    start = EngineStages(costs=costs, size=1, types=frozenset("A"), host=None, whole=False)
    for wrapped in (plain, BestModeCosts(costs=costs), start):
        for other in (
            copy.copy(wrapped),
            copy.deepcopy(wrapped),
            pickle.loads(pickle.dumps(wrapped)),
        ):
            assert answers(other) == answers(wrapped)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", [*MODELS, "times", "measured", "decode"])
def test_a_speed_divides_the_whole_time_of_a_stage(name, seed):
    """Overheads included, and in training; a stage of several types waits for the slowest, if it waits for one."""
    rng = np.random.default_rng(seed)
    problem, times = MODELS.get(name, MODELS["page"])(), dict.fromkeys("ABC", 5.0)
    table = {kind: {(1, 0.1): 2.0, (1, 99.0): 7.0} for kind in "ABC"}
    if name in ("times", "measured"):
        costs = pl.LayerTimes(times)
        other = pl.hardware.Measured(table, costs, per_layer=True, beyond="leave out")
        problem = dataclasses.replace(problem, costs=costs if name == "times" else other)
    if name == "decode":
        problem = dataclasses.replace(MODELS["roofline"](), workload=pl.Workload(512, 4, "decode"))
        problem = dataclasses.replace(problem, costs=pl.Roofline())
    model, load, costs, gpus = problem.model, problem.workload, problem.costs, problem.cluster.gpus
    speeds = {gpu.type: float(rng.uniform(0.5, 2)) for gpu in gpus}
    other = with_speeds(costs, speeds)
    kinds = [*{gpu.type: without_node(gpu) for gpu in gpus}.values()]
    first = int(rng.integers(model.layers))
    span = range(first, int(rng.integers(first, model.layers)) + 1)
    sets = [*((kind,) * n for kind in kinds for n in (1, 2)), *combinations(kinds, 2)]
    for stage in sets:
        before, after = (c.stage(model, load, stage, span, "even") for c in (costs, other))
        pure = [costs.stage(model, load, [kind] * len(stage), span, "even") for kind in stage]
        alone = [cost.throughput for cost in pure]
        if not min(alone):  # a stage that its cost model has no answer for
            continue
        factor = min(r * speeds[k.type] for r, k in zip(alone, stage, strict=True)) / min(alone)
        assert after.throughput == pytest.approx(before.throughput * factor, rel=1e-12)
        assert (after.memory_gb, after.batch) == (before.memory_gb, before.batch)
        row = np.array([[stage.count(kind) for kind in kinds]])
        tables = other.stage_tables(model, load, kinds, row, "even")
        at = 0, model.spans.kind[first, len(span) - 1]
        assert tables.throughput[at] == pytest.approx(after.throughput, rel=1e-12)
        if before.pass_seconds is not None:
            assert tables.pass_seconds[at] == pytest.approx(after.pass_seconds, rel=1e-12)
            passes = [
                cost.pass_seconds / speeds[k.type] for cost, k in zip(pure, stage, strict=True)
            ]
            longest = before.pass_seconds * max(passes) / max(cost.pass_seconds for cost in pure)
            assert after.pass_seconds == pytest.approx(longest, rel=1e-12)
    if load.phase == "training":
        before, after = (c.training_table(problem, [0]) for c in (costs, other))
        np.testing.assert_allclose(after[:4] * speeds[gpus[0].type], before[:4])
        np.testing.assert_array_equal(after[4:], before[4:])


NOT_ONE = [None, 3, "Roofline", {}, pl.Roofline, object(), lambda: None, pl.GPU("A", 1.0)]


@pytest.mark.parametrize("field", ["model", "costs"])
@pytest.mark.parametrize("value", NOT_ONE, ids=lambda value: type(value).__name__)
def test_what_is_no_model_and_no_cost_model_is_refused_in_one_line_with_the_remedy(field, value):
    base = {"model": "ModelLike", "costs": "CostModel"}[field]
    with pytest.raises(pl.errors.InvalidValue) as error:
        dataclasses.replace(pl.load_case("tiny"), **{field: value})
    told = str(error.value)
    assert re.match(rf"Problem: {field} = .*subclass of pipelab\.problem\.{base}$", told), told


# They read or write what one cost model alone has: the write-up's files and program, errors of the roofline.
ABOUT_ONE = {"cases_csv", "type_count", "author_segments", "measurements", "measured_times"}


def test_nobody_asks_of_which_class_a_cost_model_is_or_whether_it_has_an_attribute():
    classes = {"LayerTimes", "LinearThroughput", "Roofline", "Measured"}
    for path, tree in parsed_package().items():
        stem = path.rpartition("/")[2].removesuffix(".py")
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            asked, names = [ast.unparse(argument) for argument in node.args[:2]], node.func.id
            if names in ("getattr", "hasattr") and stem != "best_schedules":  # of `StageCosts`
                assert not re.search(r"(\bcosts|problem\.model)$", asked[0]), (path, node.lineno)
            if names == "isinstance" and stem not in ABOUT_ONE:
                assert not classes & set(re.findall(r"\w+", asked[1])), (path, node.lineno)
