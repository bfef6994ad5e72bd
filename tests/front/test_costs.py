"""Cost models: the write-up's numbers, stages against the oracle, and models of the reader's own."""

import dataclasses
import math

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab.costs import LayerTimes
from pipelab.problem import CostModel, ModelLike, StageCost


@pytest.mark.parametrize("seed", range(40))
def test_a_stage_is_what_the_write_up_says_one_by_one_and_in_tables(seed):
    problem = oracle.random_problem(seed, unlike=bool(seed % 2))
    costs, model, load = problem.costs, problem.model, problem.workload
    spans = [range(a, a + n) for a, n in zip(*model.spans.examples, strict=True)]
    for ids in oracle.gpu_sets(problem):
        gpus = [problem.cluster.gpus[g] for g in ids]
        kinds = list(dict.fromkeys(gpus))
        counts = np.array([[gpus.count(kind) for kind in kinds]])
        tables = costs.stage_tables(model, load, kinds, counts, problem.batch_split)
        for u, span in enumerate(spans):
            stage = costs.stage(model, load, gpus, span, problem.batch_split)
            work = model.work(span)
            share = np.array(oracle.shares(problem, ids, work)) / load.batch_size
            need = model.weight_gb(span) + oracle.activations(problem) * share
            assert stage.memory_gb == pytest.approx(need, rel=1e-6)
            assert [tables.memory_gb[0, kinds.index(g), u] for g in gpus] == pytest.approx(need)
            rate = oracle.stage(problem, ids, span)
            if rate is not None:
                assert stage.throughput == pytest.approx(rate, rel=1e-9)
                took = oracle.pass_seconds(problem, ids, span)
                assert stage.pass_seconds == pytest.approx(took, rel=1e-6)
            assert tables.throughput[0, u] == pytest.approx(stage.throughput, rel=1e-12)
            assert tables.pass_seconds[0, u] == pytest.approx(stage.pass_seconds, rel=1e-12)


def test_a_pass_takes_no_less_than_the_rate_says():
    """Though coefficients say that longer batches are quicker."""
    odd = pl.writeup.LinearThroughput(
        {t: pl.writeup.Coefficients(0, 50, 0, -240) for t in ("A100", "V100")}
    )
    tiny = pl.load_case("tiny", max_gpus_per_stage=3, link_units="tokens")
    found = pl.evaluate(dataclasses.replace(tiny, costs=odd), pl.Placement.of([(4, range(3))]))
    assert found.seconds_per_pass == 16 * 2048 / found.throughput


@pytest.mark.parametrize("base", [1e-6, 1.0, 1e3])
def test_balanced_shares_of_steep_gpus_stay_exact(base):
    """Two twins share equally however steeply their rate grows with the batch."""
    steep = {"A": pl.writeup.Coefficients(0, 1000.0, 0, base)}
    costs, gpus = pl.writeup.LinearThroughput(steep, efficiency=1.0), [pl.GPU("A", 80)] * 2
    model, load = pl.Model("m", 1, 1, 1, 0.5), pl.Workload(1, 1000)
    stage = costs.stage(model, load, gpus, 1, "balanced")
    assert stage.batch == pytest.approx((500, 500), rel=1e-12)
    tables = costs.stage_tables(model, load, gpus[:1], np.array([[2]]), "balanced")
    assert tables.throughput[0, 0] == pytest.approx(stage.throughput, rel=1e-12)


def additive(seed):
    """A random problem whose layers' times add up, the last layer with a head of its own."""
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(2, 6))
    head = (*[1.0] * (layers - 1), float(rng.choice([1.0, 1.7])))
    model = pl.Model("m", layers, 64, 256, 2.0, weight_factors=head, work_factors=head)
    types = ("A", "B", "C")
    cluster = pl.Cluster.from_counts(
        dict(zip(types, map(int, rng.integers(0, 3, 3) + [1, 0, 0]), strict=True)),
        dict(zip(types, map(float, rng.uniform(3, 12, 3)), strict=True)), float(rng.uniform(1e-4, 1e-2)),
    )  # fmt: skip
    times = dict(zip(types, map(float, rng.uniform(1, 9, 3)), strict=True))
    return pl.Problem(
        cluster, model, pl.Workload(100, int(rng.integers(1, 5))), LayerTimes(times, reserved_gb=0.5),
        max_gpus_per_stage=2, same_type_stages=False, batch_split=str(rng.choice(["even", "balanced"])),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_times_that_add_up_are_solved_like_any_other(seed):
    """No table of its own: the engine asks `stage`, once for all stages that agree."""
    problem = additive(seed)
    best, result = oracle.best(problem), pl.solve(problem)
    assert result.status == ("infeasible" if best is None else "optimal")
    if best is not None:
        assert result.throughput == pytest.approx(best, rel=1e-9)


def test_gpus_that_share_a_batch_each_hold_all_weights_and_what_is_reserved():
    model = pl.Model("m", 3, 64, 256, 1.0, work_factors=(1, 1, 1.5))
    costs = LayerTimes({"A": 10.0, "B": 30.0}, reserved_gb=2)
    pair, load = [pl.GPU("A", 8), pl.GPU("B", 8)], pl.Workload(100, 4)
    even = costs.stage(model, load, pair, range(2), "even")
    assert (even.throughput, even.batch) == (pytest.approx(400 / 0.030), (2, 2))
    assert even.memory_gb == (4, 4)
    balanced = costs.stage(model, load, pair, range(2), "balanced")
    assert balanced.batch == pytest.approx((3, 1))
    assert balanced.pass_seconds == pytest.approx(0.015)
    # one sequence is not split
    assert costs.stage(model, pl.Workload(100, 1), pair, range(2), "even").pass_seconds == 0.06


@dataclasses.dataclass(frozen=True)
class OwnModel(ModelLike):
    """A model of the reader's own, the last layer five times the work."""

    name: str = "mine"
    layers: int = 4
    d_model: int = 1024
    layer_weight_gb: float = 1.0

    def work(self, layers):
        return sum(5.0 if i == 3 else 1.0 for i in layers)


@pytest.mark.parametrize("method", ["auto", "joint", "exhaustive", "by_flops"])
def test_a_model_of_ones_own_is_asked_for_every_layers_work(method):
    cluster, costs = pl.Cluster.from_counts({"A": 2, "B": 2}, 40, 100), LayerTimes({"A": 3, "B": 7})
    problem = pl.Problem(cluster, OwnModel(), pl.Workload(100, 2), costs, 2, same_type_stages=False)
    twin = pl.Model("m", 4, 1024, 1, 1.0, work_factors=(1, 1, 1, 5))
    expected = pl.solve(dataclasses.replace(problem, model=twin), method)
    result = pl.solve(problem, method)
    assert result.status == expected.status
    assert result.throughput == pytest.approx(expected.throughput)
    assert result.bound == pytest.approx(expected.bound)


_BARE = pl.Roofline(hop_latency_s=0.0, engine="TensorRT-LLM")  # one tensor, and no wait


@pytest.mark.parametrize(
    "costs",
    [
        LayerTimes({"H100-SXM": 1.0}),
        _BARE,
        pl.hardware.Measured({"H100-SXM": {(n, 16): 9.0 * n for n in (1, 32)}}, _BARE),
    ],
    ids=lambda costs: type(costs).__name__,
)
def test_a_link_of_one_gb_per_s_carries_10_to_the_9_bytes_per_second(costs):
    """Each token has a hidden state of 4,096 numbers of 2 bytes."""
    cluster, load = pl.Cluster.from_counts({"H100-SXM": 2}, 80, 1), pl.Workload(2048, 16)
    problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, costs)
    assert problem.link_throughput(1.0) * 4096 * 2 == pytest.approx(1e9, rel=1e-12)
    seconds = 16 * 2048 * 4096 * 2 / 1e9
    assert problem.message_seconds(1.0, 2.0) == pytest.approx(seconds + 0.002, rel=1e-12)
    assert problem.tensor_gb() == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": OwnModel(layers=2.5)}, r"model\.layers = 2\.5: expected a whole number"),
        (
            {"model": ModelLike()},
            "model = 'ModelLike': expected a model with name, layers, d_model",
        ),
        (
            {"costs": pl.writeup.LinearThroughput({"A": pl.writeup.Coefficients(0, 0, 0, 9)})},
            "expected one with d_hidden",
        ),
    ],
)
def test_what_lacks_a_member_is_no_model_and_no_cost_model(changes, told):
    cluster, costs = pl.Cluster.from_counts({"A": 2}, 40, 100), LayerTimes({"A": 3})
    problem = pl.Problem(cluster, OwnModel(), pl.Workload(100, 2), costs)
    with pytest.raises(pl.errors.InvalidValue, match=told):
        dataclasses.replace(problem, **changes)


def test_equal_cost_models_have_one_hash():
    assert hash(LayerTimes({"A": 3, "B": 7})) == hash(LayerTimes({"B": 7, "A": 3}))
    one, other = pl.writeup.Coefficients(0, 0, 0, 1), pl.writeup.Coefficients(0, 0, 0, 2)
    first = pl.writeup.LinearThroughput({"A": one, "B": other})
    assert hash(first) == hash(pl.writeup.LinearThroughput({"B": other, "A": one}))


class OwnCosts(CostModel):
    """`stage` and links answer what they are told to."""

    gpu_types = ("A", "B")

    def __init__(self, answer, link):
        self.answer, self.link = answer, link

    def link_throughput(self, problem, bandwidth_gb_per_s):
        return self.link

    def stage(self, model, workload, gpus, layers, batch_split):
        share, need = (workload.batch_size / len(gpus),) * len(gpus), (1.0,) * len(gpus)
        return self.answer(StageCost(100.0 * len(gpus) / len(layers), share, need), layers)


def own_costs(answer=lambda cost, _: cost, link=30.0):
    cluster = pl.Cluster.from_counts({"A": 2, "B": 2}, 40, 100)
    model, load = pl.Model("m", 4, 1024, 1024, 1.0), pl.Workload(100, 2)
    costs = OwnCosts(answer, link)
    return pl.Problem(cluster, model, load, costs, max_gpus_per_stage=2, same_type_stages=False)


ANSWERS = {
    "a plain tuple": (lambda c, _: tuple(c), r"answer = .*: expected a StageCost"),
    "not a number": (lambda c, _: c._replace(throughput=math.nan), "throughput = nan: expected"),
    "one too few": (lambda c, _: c._replace(memory_gb=c.memory_gb[1:]), r"memory_gb = \(\)"),
    "no time": (lambda c, _: c._replace(pass_seconds=0.0), r"pass_seconds = 0\.0: expected sec"),
    "a slow first layer": (
        lambda c, layers: c._replace(throughput=c.throughput / (1 + (0 in layers))),
        r"range\(1, 2\) = .*expected the same as range\(0, 1\): 50 and 1; .*work_factors",
    ),
    "a heavy layer inside": (
        lambda c, layers: c._replace(memory_gb=[5.0 if layers == range(2, 3) else 1.0] * len(c.batch)),
        r"range\(2, 3\) = .*100 tokens/s and 5 GB",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_that_is_none_is_refused_by_name(case):
    answer, told = ANSWERS[case]
    with pytest.raises(pl.errors.InvalidValue, match=rf"^OwnCosts\.stage: {told}"):
        pl.solve(own_costs(answer))


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        ("fast", "rate = 'fast': expected a number"),
        ([1.0, 2.0, 3.0], r"rate = \[1\.0, 2\.0, 3\.0\]: expected a number, or an array of the"),
        (0.0, r"rate = '0\.0 at 100 GB/s': expected more than 0 tokens/s"),
    ],
)
def test_a_link_without_a_rate_is_refused(rate, told):
    with pytest.raises(pl.errors.InvalidValue, match=rf"^OwnCosts\.link_throughput: {told}"):
        pl.solve(own_costs(link=rate))


def test_work_that_does_not_add_up_is_refused():
    class Overhead(OwnModel):
        def work(self, layers):
            return len(layers) + 5.0

    told = r"Overhead: work\(range\(0, 4\)\) = 9.0: expected 24"
    with pytest.raises(pl.errors.InvalidValue, match=told):
        pl.solve(dataclasses.replace(own_costs(), model=Overhead()))


@pytest.mark.parametrize("method", ["auto", "joint", "exhaustive"])
def test_stages_without_a_rate_are_no_stages_and_links_may_all_be_equally_fast(method):
    result = pl.solve(own_costs(lambda c, _: c._replace(throughput=0.0)), method)
    assert result.status == "infeasible"
    assert result.reason == "no stage that fits in memory has a rate in this cost model"
    short = own_costs(lambda c, n: c._replace(throughput=c.throughput * (len(n) < 3)))
    result = pl.solve(short, method)
    assert (result.status, result.throughput) == ("optimal", 30.0)
    assert max(len(stage.layers) for stage in result.placement.stages) < 3


def test_coefficients_that_stand_twice_are_refused(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text("gpu_type,per_token,per_sequence,per_layer,constant\nA,0,0,0,1\nA,0,0,0,2\n")
    with pytest.raises(pl.errors.InvalidData, match="expected a name that no other row has"):
        pl.writeup.load_coefficients(path)
