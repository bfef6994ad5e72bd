"""Measured stage times: interpolated as a line, refused beyond, and solved like any other cost model."""

import dataclasses

import pytest

import oracle
import pipelab as pl

TABLE = {
    name: {(n, b): factor * n * (5 + b) for n in (1, 2, 4) for b in (1, 4, 16)}
    for name, factor in (("A100", 1.0), ("V100", 1.7))
}


def _tiny(table=TABLE, **changes):
    options = {name: changes.pop(name) for name in ("per_layer", "beyond") if name in changes}
    tiny = pl.load_case("tiny", link_units="tokens")
    return dataclasses.replace(
        tiny, costs=pl.hardware.Measured(table, tiny.costs, **options), **changes
    )


def test_between_points_time_is_a_line_and_on_them_the_measurement():
    table = {(1, 1): 10.0, (1, 3): 20.0, (3, 1): 40.0, (3, 3): 80.0}
    costs = pl.hardware.Measured({"L4": table}, pl.Roofline(), beyond="leave out")
    model, gpu = pl.load_model("Llama-3-8B"), [pl.GPU("L4", 24)]
    rows = ((1, 1, 10), (3, 3, 80), (1, 2, 15), (2, 1, 25), (2, 2, 37.5))
    for layers, batch, milliseconds in rows:
        cost = costs.stage(model, pl.Workload(100, batch), gpu, layers, "even")
        assert 1000 * cost.pass_seconds == pytest.approx(milliseconds)
    assert costs.stage(model, pl.Workload(100, 1), gpu, 4, "even").throughput == 0
    tiny = _tiny()
    # an A100 and a V100: the slower counts
    cost = tiny.costs.stage(tiny.model, tiny.workload, tiny.cluster.gpus[1:3], 3, "even")
    assert tiny.workload.tokens / cost.throughput == pytest.approx(1.7 * 3 * (5 + 8) / 1000)


def test_nothing_is_extrapolated_in_silence():
    few = {t: {(n, b): n * (5 + b) for n in (1, 4) for b in (16, 32)} for t in TABLE}
    longer = dataclasses.replace(pl.load_case("tiny").model, layers=6)
    for table, changes, message in (
        (TABLE, {"workload": pl.Workload(2048, 32)}, "1 to 16 sequences, and .* 32 to 32"),
        (few, {"max_gpus_per_stage": 2}, "16 to 32 sequences, and a stage may have 8 to 16"),
        (TABLE, {"model": longer}, "1 to 4 layers, and a stage may have 1 to 6: measure more"),
        (TABLE, {"batch_split": "balanced"}, "the table says nothing of unequal shares"),
    ):
        with pytest.raises(pl.errors.InvalidValue, match=message):
            _tiny(table, **changes)
    two = {t: {key: ms for key, ms in table.items() if key[0] < 4} for t, table in TABLE.items()}
    result = pl.solve(_tiny(two, beyond="leave out"), "aggregated")
    assert max(len(s.layers) for s in result.placement.stages) <= 2


@pytest.mark.quick(2)
@pytest.mark.parametrize("k", [2, 3, 4])
def test_a_pass_is_one_of_whole_sequences(k):
    """Sixteen sequences on three GPUs: a rate from five and a third each, a pass from six."""
    problem = _tiny(max_gpus_per_stage=k)

    def cost(costs):
        gpus = problem.cluster.gpus[:k]
        return costs.stage(problem.model, problem.workload, gpus, 2, "even")

    stage, slowest = cost(problem.costs), 1.7 if k > 2 else 1.0
    rate = problem.workload.tokens / (slowest * 2 * (5 + 16 / k) / 1000)
    assert stage.throughput == pytest.approx(rate)
    assert stage.pass_seconds == pytest.approx(slowest * 2 * (5 + -(-16 // k)) / 1000)
    least = min(seconds for _, _, seconds in oracle.passes(problem))
    assert pl.solve(problem, objective="latency").objective.value == pytest.approx(least, rel=1e-9)
    # a stage of which the pass was not measured has no rate
    for most, there in ((16 / k, False), (-(-16 // k), True)):
        table = {t: {(n, b): 1.0 for n in (1, 4) for b in (1, most)} for t in TABLE}
        measured = pl.hardware.Measured(table, problem.costs.needs, beyond="leave out")
        assert (cost(measured).throughput > 0) == (there or 16 % k == 0)


@pytest.mark.slow
def test_over_a_roofline_in_decode_it_is_solved_like_any_other():
    roof, small = pl.Roofline(), dataclasses.replace(pl.load_model("Llama-3-8B"), layers=5)
    gpus = pl.Cluster.from_counts({"A100-SXM-40": 2, "L4": 1}, {"A100-SXM-40": 40, "L4": 24}, 0.02)
    table = {
        t: {(n, b): f * n * (3 + b) for n in (1, 8) for b in (1, 8)}
        for t, f in (("A100-SXM-40", 1), ("L4", 2.2))
    }
    problem = pl.Problem(gpus, small, pl.Workload(2048, 8, "decode", in_flight=1), pl.hardware.Measured(table, roof),
                         max_gpus_per_stage=3, same_type_stages=False)  # fmt: skip
    assert not problem.costs.needs.tensor_parallel  # the table knows no stages that cut layers
    every = list(oracle.passes(problem))
    best, least = max(rate for rate, _, _ in every), min(seconds for _, _, seconds in every)
    assert pl.solve(problem, "aggregated", "rate").throughput == pytest.approx(best, rel=1e-9)
    assert pl.solve(problem, objective="latency").objective.value == pytest.approx(least, rel=1e-9)


def test_one_layer_may_stand_for_many():
    single = {t: {k: ms for k, ms in table.items() if k[0] == 1} for t, table in TABLE.items()}
    assert pl.solve(_tiny(single, per_layer=True), "aggregated").throughput == pytest.approx(
        pl.solve(_tiny(), "aggregated").throughput
    )


BAD = {
    "a hole": ({"A100": {(1, 1): 1.0, (2, 2): 1.0}}, {}, "1 layers with batch 2 are missing"),
    "no time": ({"A100": {(1, 1): 0.0}}, {}, "expected more than 0"),
    "nothing": ({}, {}, "expected at least one type of GPU"),
    "several layers for one": (TABLE, {"per_layer": True}, "expects times of one layer only"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables(name):
    table, options, message = BAD[name]
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.hardware.Measured(table, pl.Roofline(), **options)


def test_from_a_file(tmp_path):
    path, tiny = tmp_path / "times.csv", pl.load_case("tiny")
    lines = [f"{t},{n},{b},{ms}" for t, table in TABLE.items() for (n, b), ms in table.items()]
    path.write_text("\n".join(["gpu_type,layers,batch,milliseconds", *lines]))
    costs = pl.hardware.load_measured(path, tiny.costs)
    assert {t: dict(v) for t, v in costs.milliseconds.items()} == TABLE
    path.write_text("\n".join(["gpu_type,layers,batch,milliseconds", *lines, lines[0]]))
    told = r"row 20, column 'batch': '1': 1 layers with this"
    with pytest.raises(pl.errors.InvalidData, match=told):
        pl.hardware.load_measured(path, tiny.costs)


def test_links_are_counted_as_the_completed_model_counts_them():
    """The remedy that an error names works here, too."""
    transfers = _tiny()
    needs = dataclasses.replace(transfers.costs.needs, link_units="transfers")
    costs = dataclasses.replace(transfers.costs, needs=needs)
    transfers = dataclasses.replace(transfers, costs=costs)
    with pytest.raises(pl.errors.InvalidValue, match="with_link_units"):
        pl.solve(transfers, objective="latency")
    tokens = pl.writeup.with_link_units(transfers, "tokens")
    assert tokens.costs.link_units == "tokens"
    assert pl.solve(tokens, objective="latency").status == "optimal"
