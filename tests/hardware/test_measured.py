"""Measured stage times: interpolated as a line, refused beyond, and solved like any other cost model."""

import dataclasses

import numpy as np
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
    costs, tiny = (
        pl.hardware.Measured(
            {"A100": {(1, 1): 10.0, (1, 3): 20.0, (3, 1): 40.0, (3, 3): 80.0}}, pl.Roofline()
        ),
        _tiny(),
    )
    for layers, batch, milliseconds in (
        (1, 1, 10),
        (3, 3, 80),
        (1, 2, 15),
        (2, 1, 25),
        (2, 2, 37.5),
    ):
        assert 1000 * costs._seconds(
            "A100", np.array(layers), np.array(float(batch))
        ) == pytest.approx(milliseconds)
    assert np.isinf(costs._seconds("A100", np.array(4), np.array(1.0)))
    # an A100 and a V100
    cost = tiny.costs.stage(tiny.model, tiny.workload, tiny.cluster.gpus[1:3], 3, "even")
    # the slower counts
    assert tiny.workload.tokens / cost.throughput == pytest.approx(1.7 * 3 * (5 + 8) / 1000)


@pytest.mark.quick(1)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("same", [True, False])
def test_solved_like_any_other(k, same):
    problem = _tiny(max_gpus_per_stage=k, same_type_stages=same)
    best = oracle.best(problem)
    for method, options in {"aggregated": {}, "exhaustive": {}, "joint": {"form": "tight"}}.items():
        result = pl.solve(problem, method, **options)
        assert (method, result.status) == (method, "optimal")
        assert result.throughput == pytest.approx(best, rel=1e-6)


def test_nothing_is_extrapolated_in_silence():
    with pytest.raises(
        pl.errors.InvalidValue,
        match="measured for 1 to 16 sequences, and a stage may have 32 to 32",
    ):
        _tiny(workload=pl.Workload(2048, 32))
    few = {t: {(n, b): n * (5 + b) for n in (1, 4) for b in (16, 32)} for t in TABLE}
    with pytest.raises(
        pl.errors.InvalidValue,
        match="measured for 16 to 32 sequences, and a stage may have 8 to 16",
    ):
        _tiny(few, max_gpus_per_stage=2)
    longer = dataclasses.replace(pl.load_case("tiny").model, layers=6)
    with pytest.raises(
        pl.errors.InvalidValue, match=r"1 to 4 layers, and a stage may have 1 to 6: measure more"
    ):
        _tiny(model=longer)
    short = _tiny(
        {t: {(n, b): ms for (n, b), ms in table.items() if n < 4} for t, table in TABLE.items()},
        beyond="leave out",
    )
    result = pl.solve(short, "aggregated")
    assert max(len(s.layers) for s in result.placement.stages) <= 2
    assert result.throughput < pl.solve(_tiny(), "aggregated").throughput * (1 + 1e-9)
    whole = pl.score(short, pl.Placement.of([(4, (0,))]), result)
    assert not whole.valid
    assert "stage 1" in whole.sentence


@pytest.mark.quick(2)
@pytest.mark.parametrize("k", [2, 3, 4])
def test_a_pass_is_one_of_whole_sequences(k):
    """Sixteen sequences on three GPUs: a rate from five and a third each, a pass from six."""
    problem = _tiny(max_gpus_per_stage=k)
    stage = problem.costs.stage(
        problem.model, problem.workload, problem.cluster.gpus[:k], 2, "even"
    )
    slowest = 1.7 if k > 2 else 1.0
    assert problem.workload.tokens / stage.throughput == pytest.approx(
        slowest * 2 * (5 + 16 / k) / 1000
    )
    assert stage.pass_seconds == pytest.approx(slowest * 2 * (5 + {2: 8, 3: 6, 4: 4}[k]) / 1000)
    least = min(seconds for _, _, seconds in oracle.passes(problem))
    assert pl.solve(problem, objective="latency").objective.value == pytest.approx(least, rel=1e-9)
    turns = _tiny({t: {(n, b): table[n, min(table, key=lambda key: abs(key[1] - b))[1]] for n in (1, 4)
                       for b in (5.0, 5.5, 16.0)} for t, table in TABLE.items()},
                  beyond="leave out", max_gpus_per_stage=3)  # fmt: skip
    assert (
        turns.costs.stage(turns.model, turns.workload, turns.cluster.gpus[:3], 2, "even").throughput
        > 0
    )
    short = dataclasses.replace(turns, costs=dataclasses.replace(turns.costs, milliseconds={
        t: {key: ms for key, ms in table.items() if key[1] < 6} for t, table in turns.costs.milliseconds.items()
    }))  # fmt: skip
    assert (
        short.costs.stage(short.model, short.workload, short.cluster.gpus[:3], 2, "even").throughput
        == 0
    )


@pytest.mark.slow
def test_over_a_roofline_in_decode_it_is_solved_like_any_other():
    roof, gpus = (
        pl.Roofline(),
        pl.Cluster.from_counts({"A100-SXM-40": 2, "L4": 2}, {"A100-SXM-40": 40, "L4": 24}, 0.02),
    )
    table = {
        t: {(n, b): f * n * (3 + b) for n in (1, 8) for b in (1, 8)}
        for t, f in (("A100-SXM-40", 1), ("L4", 2.2))
    }
    small = dataclasses.replace(pl.load_model("Llama-3-8B"), layers=8)
    problem = pl.Problem(gpus, small, pl.Workload(2048, 8, "decode", in_flight=1), pl.hardware.Measured(table, roof),
                         max_gpus_per_stage=3, same_type_stages=False)  # fmt: skip
    assert pl.solve(problem, "aggregated", "rate").throughput == pytest.approx(
        oracle.best(problem), rel=1e-9
    )
    least = min(seconds for _, _, seconds in oracle.passes(problem))
    assert pl.solve(problem, objective="latency").objective.value == pytest.approx(least, rel=1e-9)


def test_one_layer_may_stand_for_many():
    single = {t: {k: ms for k, ms in table.items() if k[0] == 1} for t, table in TABLE.items()}
    assert pl.solve(_tiny(single, per_layer=True), "aggregated").throughput == pytest.approx(
        pl.solve(_tiny(), "aggregated").throughput
    )


BAD = {
    "a hole in the table": (
        {"A100": {(1, 1): 1.0, (2, 2): 1.0}},
        {},
        "1 layers with batch 2 are missing",
    ),
    "no time": ({"A100": {(1, 1): 0.0}}, {}, "expected more than 0"),
    "not a number": ({"A100": {(1, 1): float("nan")}}, {}, "expected a finite number"),
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
    with pytest.raises(
        pl.errors.InvalidData, match=r"row 20, column 'batch': '1': 1 layers with this"
    ):
        pl.hardware.load_measured(path, tiny.costs)
    path.write_text("\n".join(["gpu_type,layers,batch,milliseconds", *lines[1:]]))
    with pytest.raises(pl.errors.InvalidData, match="are missing"):
        pl.hardware.load_measured(path, tiny.costs)


def test_a_stage_of_several_gpus_cuts_no_layers():
    roof = pl.Roofline()
    assert roof.tensor_parallel
    assert not pl.hardware.Measured({"L4": {(1, 1): 1.0}}, roof).needs.tensor_parallel


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
