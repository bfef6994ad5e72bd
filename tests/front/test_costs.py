"""The linear cost model: the write-up's numbers, and its two ways of computing them held together."""

import dataclasses
import math
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
import pipelab as pl
from pipelab.costs import LayerTimes
from pipelab.problem import StageCost
from pipelab.stage_arrays import stage_tables
from pipelab.writeup.linear_rates import with_link_units


@pytest.mark.parametrize(
    ("gpu_type", "length", "batch", "layers", "rate"),
    [
        ("H100", 2048, 100, 14, 810.424),
        ("H100", 2048, 100, 8, 795.424),
        ("T4", 2048, 100, 14, 200.96),
        ("T4", 2048, 100, 2, 191.36),
        ("A10", 2048, 100, 14, 272.464),
        ("A100", 2048, 16, 1, 211.52),
        ("A100", 2048, 16, 4, 217.52),
        ("A100", 2048, 16, 32, 273.52),
    ],
)
def test_one_gpu(gpu_type, length, batch, layers, rate):
    costs = pl.writeup.load_coefficients()
    assert costs.gpu_throughput(
        gpu_type, pl.Workload(length, batch), batch, layers
    ) == pytest.approx(rate, rel=1e-12)


def test_the_rate_never_falls_below_one():
    costs = pl.writeup.LinearThroughput({"slow": pl.writeup.Coefficients(-1, 0, 0, 0)})
    assert costs.gpu_throughput("slow", pl.Workload(100, 1), 1, 1) == 1


def test_balanced_shares_of_tiny():
    tiny = pl.load_case("tiny", max_gpus_per_stage=4, batch_split="balanced")
    stage = pl.evaluate(tiny, pl.Placement.of([(4, (0, 1, 2, 3))])).stages[0]
    assert stage.throughput == pytest.approx(443.85, abs=0.005)
    assert stage.batch == pytest.approx((4.976, 4.976, 3.024, 3.024), abs=5e-4)
    assert sum(stage.batch) == pytest.approx(16, rel=1e-12)
    pair = pl.evaluate(tiny, pl.Placement.of([(4, (0, 2))]))
    assert pair.throughput == pytest.approx(251.22, abs=0.005)
    even = dataclasses.replace(tiny, batch_split="even")
    assert pl.evaluate(even, pl.Placement.of([(4, (0, 2))])).throughput == pytest.approx(
        193.15, abs=0.005
    )


def test_a_balanced_split_that_has_no_answer_is_refused(tiny):
    costs = pl.writeup.LinearThroughput(
        {t: pl.writeup.Coefficients(-1, 5, 2, 100) for t in ("A100", "V100")}
    )
    with pytest.raises(
        pl.errors.InvalidValue, match=r"batch_split = 'balanced': .*for A100 the first is -1946"
    ):
        dataclasses.replace(tiny, costs=costs, batch_split="balanced")


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), split=st.sampled_from(["even", "balanced"]))
def test_one_stage_and_many_stages_agree(seed, split):
    rng = np.random.default_rng(seed)
    names = ["A", "B", "C"]
    coefficients = {
        n: pl.writeup.Coefficients(
            -rng.uniform(0, 0.01), rng.uniform(0, 8), rng.uniform(-3, 3), rng.uniform(30, 200)
        )
        for n in names
    }
    costs = pl.writeup.LinearThroughput(coefficients)
    model, workload = pl.Model("m", 6, 64, 64, 1.0), pl.Workload(1000, int(rng.integers(1, 64)))
    kinds = [pl.GPU(n, 10) for n in names]
    composition = rng.integers(0, 4, (5, 3))
    composition[composition.sum(axis=1) == 0, 0] = 1
    tables = stage_tables(costs, model, workload, kinds, composition, split)
    for c, row in enumerate(composition):
        gpus = [k for k, n in zip(kinds, row, strict=True) for _ in range(n)]
        for layers in (1, 6):
            stage = costs.stage(model, workload, gpus, layers, split)
            assert tables.throughput[c, layers - 1] == pytest.approx(stage.throughput, rel=1e-12)
            memory = [tables.memory_gb[c, kinds.index(g), layers - 1] for g in gpus]
            assert memory == pytest.approx(stage.memory_gb, rel=1e-12)
            assert tables.pass_seconds[c, layers - 1] == pytest.approx(
                stage.pass_seconds, rel=1e-12
            )


@pytest.mark.parametrize("seed", range(40))
def test_a_stage_is_what_the_write_up_says(seed):
    problem = oracle.random_problem(seed)
    for gpus in oracle.gpu_sets(problem):
        stage = problem.costs.stage(
            problem.model,
            problem.workload,
            [problem.cluster.gpus[g] for g in gpus],
            1,
            problem.batch_split,
        )
        expected = oracle.stage(problem, gpus, range(1))
        if expected is not None:
            assert stage.throughput == pytest.approx(expected, rel=1e-9)
            assert stage.pass_seconds == pytest.approx(
                oracle.pass_seconds(problem, gpus, range(1)), rel=1e-6
            )


def test_a_pass_of_whole_sequences_takes_what_the_rate_says_and_no_other_is_cut():
    tiny = pl.load_case("tiny", max_gpus_per_stage=3, link_units="tokens")
    two, three = (pl.evaluate(tiny, pl.Placement.of([(4, range(n))])) for n in (2, 3))
    assert two.seconds_per_pass == 16 * 2048 / two.throughput  # 8 sequences each
    # 5⅓ sequences each: in a turn of six the slowest GPU, a V100, needs 6 L / θ(6), slowed by the
    # efficiency.
    v100 = tiny.costs.gpu_throughput("V100", tiny.workload, 6, 4)
    assert three.seconds_per_pass == pytest.approx(6 * 2048 / (0.85 * v100))
    assert three.seconds_per_pass > 1.05 * 16 * 2048 / three.throughput
    # Coefficients that make longer batches quicker: the rate's own time counts, and is never
    # undercut.
    odd = pl.writeup.LinearThroughput(
        {t: pl.writeup.Coefficients(0, 50, 0, -240) for t in ("A100", "V100")}
    )
    strange = pl.evaluate(dataclasses.replace(tiny, costs=odd), pl.Placement.of([(4, range(3))]))
    assert strange.seconds_per_pass == 16 * 2048 / strange.throughput


def test_coefficients_that_stand_twice_are_refused(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text("gpu_type,per_token,per_sequence,per_layer,constant\nA,0,0,0,1\nA,0,0,0,2\n")
    with pytest.raises(
        pl.errors.InvalidData,
        match="row 3, column 'gpu_type': 'A': expected a name that no other row has",
    ):
        pl.writeup.load_coefficients(path)
    path.write_text("gpu_type,per_token,per_sequence,per_layer,constant\nA,0,x,0,1\n")
    with pytest.raises(
        pl.errors.InvalidData, match="row 2, column 'per_sequence': 'x': expected a number"
    ):
        pl.writeup.load_coefficients(path)


@pytest.mark.parametrize("base", [1e-6, 1e-3, 1.0, 1e3])
def test_balanced_shares_of_steep_gpus_stay_exact(base):
    """Two twins share equally however steeply their rate grows with the batch."""
    costs = pl.writeup.LinearThroughput(
        {"A": pl.writeup.Coefficients(0, 1000.0, 0, base)}, efficiency=1.0
    )
    gpus = [pl.GPU("A", 80)] * 2
    stage = costs.stage(pl.Model("m", 1, 1, 1, 0.5), pl.Workload(1, 1000), gpus, 1, "balanced")
    assert stage.batch == pytest.approx((500, 500), rel=1e-12)
    tables = stage_tables(
        costs,
        pl.Model("m", 1, 1, 1, 0.5),
        pl.Workload(1, 1000),
        gpus[:1],
        np.array([[2]]),
        "balanced",
    )
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


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(40))
def test_times_that_add_up_are_solved_like_any_other(seed):
    """No table of its own: the engine asks `stage`, once for all stages that agree."""
    problem = additive(seed)
    best, result = oracle.best(problem), pl.solve(problem)
    assert result.status == ("infeasible" if best is None else "optimal")
    if best is not None:
        assert result.throughput == pytest.approx(best, rel=1e-9)


def test_a_stage_takes_the_sum_of_its_layers_times():
    model = pl.Model("m", 3, 64, 256, 1.0, work_factors=(1, 1, 1.5))
    costs = LayerTimes({"A": 10.0, "B": 30.0}, reserved_gb=2)
    a, b = pl.GPU("A", 8), pl.GPU("B", 8)
    load = pl.Workload(100, 4)
    assert costs.stage(model, load, [a], range(3), "even") == (
        pytest.approx(400 / 0.035), (4,), (5,), 1, pytest.approx(0.035),
    )  # fmt: skip
    even = costs.stage(model, load, [a, b], range(2), "even")
    assert (even.throughput, even.batch) == (pytest.approx(400 / 0.030), (2, 2))
    assert even.memory_gb == (4, 4)  # each holds all weights, and what is reserved
    balanced = costs.stage(model, load, [a, b], range(2), "balanced")
    assert balanced.throughput == pytest.approx(400 / 0.015)
    assert balanced.batch == pytest.approx((3, 1))
    assert balanced.pass_seconds == pytest.approx(0.015)
    assert costs.stage(model, pl.Workload(100, 1), [a, b], range(2), "even").pass_seconds == 0.06


class OwnModel:
    """A model of the reader's own: the members of `ModelLike` alone, the last layer five times the work."""

    name, layers, d_model, bytes_per_element, layer_weight_gb = "mine", 4, 1024, 2, 1.0
    uniform = False

    def weight_gb(self, layers):
        return float(len(layers))

    def work(self, layers):
        return sum(5.0 if i == 3 else 1.0 for i in layers)


class OwnTuple(NamedTuple):
    """The same without weak references."""

    name: str = "mine"
    layers: int = 4
    d_model: int = 1024
    bytes_per_element: float = 2
    layer_weight_gb: float = 1.0
    uniform: bool = False
    weight_gb = OwnModel.weight_gb
    work = OwnModel.work


@pytest.mark.quick(2)
@pytest.mark.parametrize("model", [OwnModel(), OwnTuple()], ids=["class", "named tuple"])
@pytest.mark.parametrize("method", ["auto", "joint", "exhaustive", "by_flops"])
def test_a_model_of_ones_own_is_asked_for_every_layers_work(model, method):
    cluster = pl.Cluster.from_counts({"A": 2, "B": 2}, 40, 100)
    problem = pl.Problem(
        cluster, model, pl.Workload(100, 2), LayerTimes({"A": 3, "B": 7}), 2, same_type_stages=False
    )
    twin = pl.Model("m", 4, 1024, 1, 1.0, work_factors=(1, 1, 1, 5))
    expected = pl.solve(dataclasses.replace(problem, model=twin), method)
    result = pl.solve(problem, method)
    assert (result.status, result.throughput, result.bound) == (
        expected.status, pytest.approx(expected.throughput), pytest.approx(expected.bound),
    )  # fmt: skip


def test_work_that_does_not_add_up_is_refused():
    class Overhead(OwnModel):
        def work(self, layers):
            return len(layers) + 5.0

    cluster = pl.Cluster.from_counts({"A": 2}, 40, 100)
    problem = pl.Problem(cluster, Overhead(), pl.Workload(100, 2), LayerTimes({"A": 3}))
    with pytest.raises(
        pl.errors.InvalidValue, match=r"Overhead: work\(range\(0, 4\)\) = 9.0: expected 24"
    ):
        pl.solve(problem)


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
    assert problem.message_seconds(1.0, 0.0) == pytest.approx(seconds, rel=1e-12)
    assert problem.tensor_gb() == pytest.approx(seconds, rel=1e-12)


def test_the_write_ups_links_keep_its_published_number():
    """400 GB/s over a tensor of 0.25 GiB: 1,600 transfers/s."""
    tiny = pl.load_case("tiny")
    assert tiny.link_throughput(400.0) == 1600.0
    in_tokens = with_link_units(tiny, "tokens")
    assert in_tokens.link_throughput(400.0) == 1600.0 * 16 * 2048


def test_what_lacks_a_member_is_no_model_and_no_cost_model():
    cluster, load = pl.Cluster.from_counts({"A": 2}, 40, 100), pl.Workload(100, 2)
    costs = LayerTimes({"A": 3})
    with pytest.raises(
        pl.errors.InvalidValue, match="model = 'llama': expected a model, such as Model"
    ):
        pl.Problem(cluster, "llama", load, costs)
    with pytest.raises(pl.errors.InvalidValue, match="this has no check, stage, link_throughput"):
        pl.Problem(cluster, OwnModel(), load, SimpleNamespace(gpu_types=["A"]))
    with pytest.raises(pl.errors.InvalidValue, match="this is a class: call it"):
        pl.Problem(cluster, OwnModel(), load, LayerTimes)
    with pytest.raises(
        pl.errors.InvalidValue, match=r"model\.layers = 2\.5: expected a whole number"
    ):
        pl.Problem(cluster, OwnTuple(layers=2.5), load, costs)
    with pytest.raises(pl.errors.InvalidValue, match="expected one with d_hidden"):
        pl.Problem(
            cluster,
            OwnModel(),
            load,
            pl.writeup.LinearThroughput({"A": pl.writeup.Coefficients(0, 0, 0, 9)}),
        )


def test_equal_cost_models_have_one_hash():
    assert hash(LayerTimes({"A": 3, "B": 7})) == hash(LayerTimes({"B": 7, "A": 3}))
    one, other = pl.writeup.Coefficients(0, 0, 0, 1), pl.writeup.Coefficients(0, 0, 0, 2)
    first = pl.writeup.LinearThroughput({"A": one, "B": other})
    assert hash(first) == hash(pl.writeup.LinearThroughput({"B": other, "A": one}))


class OwnCosts:
    """The four members of `CostModel` alone; `stage` answers what it is told to."""

    gpu_types = ("A", "B")

    def __init__(self, answer):
        self.answer = answer

    def check(self, problem):
        """Nothing is refused."""

    def link_throughput(self, problem, bandwidth_gb_per_s):
        return bandwidth_gb_per_s * 1e6

    def stage(self, model, workload, gpus, layers, batch_split):
        share, need = (workload.batch_size / len(gpus),) * len(gpus), (1.0,) * len(gpus)
        return self.answer(StageCost(100.0 * len(gpus) / len(layers), share, need), layers)


def own_costs(answer):
    cluster = pl.Cluster.from_counts({"A": 2, "B": 2}, 40, 100)
    model, load = pl.Model("m", 4, 1024, 1024, 1.0), pl.Workload(100, 2)
    return pl.Problem(
        cluster, model, load, OwnCosts(answer), max_gpus_per_stage=2, same_type_stages=False
    )


ANSWERS = {
    "a plain tuple": (lambda c, _: tuple(c), r"answer = .*: expected a StageCost"),
    "no number": (lambda c, _: c._replace(throughput=None), "throughput = None: expected a finite"),
    "not a number": (lambda c, _: c._replace(throughput=math.nan), "throughput = nan: expected"),
    "without end": (lambda c, _: c._replace(throughput=math.inf), "throughput = inf: expected"),
    "beyond floats": (lambda c, _: c._replace(throughput=10**400), "throughput = 1.*: expected"),
    "an array": (lambda c, _: c._replace(throughput=np.ones(1)), "throughput = array"),
    "one for all": (lambda c, _: c._replace(memory_gb=1.0), r"memory_gb = 1\.0: expected a num"),
    "one too few": (lambda c, _: c._replace(memory_gb=c.memory_gb[1:]), r"memory_gb = \(\)"),
    "no memory": (lambda c, _: c._replace(memory_gb=[math.nan] * len(c.batch)), "memory_gb = "),
    "below 0": (lambda c, _: c._replace(memory_gb=[-1] * len(c.batch)), "memory_gb = "),
    "time backwards": (lambda c, _: c._replace(pass_seconds=-1.0), r"pass_seconds = -1\.0"),
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
@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_an_answer_that_is_none_is_refused_by_name(case, objective):
    answer, told = ANSWERS[case]
    with pytest.raises(pl.errors.InvalidValue, match=rf"^OwnCosts\.stage: {told}"):
        pl.solve(own_costs(answer), objective=objective)


def test_numbers_of_numpy_are_numbers():
    def answer(cost, _):
        rate = np.array(cost.throughput)
        return StageCost(rate, np.array(cost.batch), np.array(cost.memory_gb, np.float32))

    assert pl.solve(own_costs(answer)).throughput == pl.solve(own_costs(lambda c, _: c)).throughput


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", ["auto", "joint", "exhaustive"])
def test_stages_without_a_rate_are_no_stages(method):
    result = pl.solve(own_costs(lambda c, _: c._replace(throughput=0.0)), method)
    assert result.status == "infeasible"
    assert result.reason == "no stage that fits in memory has a rate in this cost model"
    long = own_costs(lambda c, layers: c._replace(throughput=c.throughput * (len(layers) < 3)))
    result = pl.solve(long, method)
    assert result.placement is not None
    assert max(len(stage.layers) for stage in result.placement.stages) < 3


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        (None, "rate = 'nan at 100 GB/s': expected more than 0 tokens/s"),
        ("fast", "rate = 'fast': expected a number"),
        (
            [1.0, 2.0, 3.0],
            r"rate = \[1\.0, 2\.0, 3\.0\]: expected a number, or an array of the shape",
        ),
        (math.nan, "rate = 'nan at 100 GB/s': expected more than 0 tokens/s"),
        (0.0, r"rate = '0\.0 at 100 GB/s': expected more than 0 tokens/s"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["auto", "joint", "even"])
def test_a_link_without_a_rate_is_refused(rate, told, method, monkeypatch):
    monkeypatch.setattr(OwnCosts, "link_throughput", lambda *_: rate)
    with pytest.raises(pl.errors.InvalidValue, match=rf"^OwnCosts\.link_throughput: {told}"):
        pl.solve(own_costs(lambda c, _: c), method)


@pytest.mark.slow
def test_links_may_all_be_equally_fast(monkeypatch):
    problem = own_costs(
        lambda c, _: c._replace(memory_gb=(20.0 * 100 / c.throughput,) * len(c.batch))
    )
    monkeypatch.setattr(OwnCosts, "link_throughput", lambda *_: 30.0)
    for method in ("auto", "joint", "exhaustive"):
        result = pl.solve(problem, method)
        assert (result.status, result.throughput) == (
            "optimal",
            50.0 if len(result.placement) == 1 else 30.0,
        )
