"""Times that no constant was fitted to: `data/held_out_times.csv`.

What is left out of its sources, and why: llama.cpp of the Argonne tables, twice as slow as the same
model in every other source; TensorRT-LLM 0.5 with keys and values in fp8, whose version had no fast
kernels for grouped heads; and Mixtral with 16 and more equal prompts, which all visit the same experts.
"""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pipelab as pl
from pipelab.hardware.measurements import error_bands, held_out_errors
from pipelab.hardware.published_times import LEAST_TIMES, published_errors

ROWS = pd.read_csv("data/held_out_times.csv")
# By phase and GPUs that cut a layer: rows, and the greatest median |error|; the target is 15%. Of the
# prompts on 4 and 8 GPUs 9 of 13 are from one engine of 2023, where 4,096 tokens take 2.4 to 2.9
# times as long as 2,048 on 4 and 8 GPUs and 2.1 times on 2, so neither arithmetic nor attention
# explains it, but slow all-reduces of 64 MiB and more (`Engine.large_allreduce`): 21% without them.
GROUPS = {
    ("decode", "1"): (116, 0.08),
    ("decode", "2"): (39, 0.09),
    ("decode", "4 or more"): (64, 0.11),
    ("prefill", "1"): (53, 0.10),
    ("prefill", "2"): (17, 0.10),
    ("prefill", "4 or more"): (13, 0.12),
}


@pytest.fixture(scope="module")
def errors():
    """A table as `against_measured` makes it; what a request takes is mostly its decoding."""
    return held_out_errors()


def test_what_was_never_fitted_is_predicted(errors):
    assert len(errors) == sum(rows for rows, _ in GROUPS.values())
    assert errors["error"].abs().median() < 0.09
    bands = error_bands(errors)
    for (phase, cut), (rows, limit) in GROUPS.items():
        found = bands.loc[(phase, cut, "all")]
        assert (found["rows"], found["median"] < limit) == (rows, True), (phase, cut)


@pytest.fixture(scope="module")
def published():
    """Every published time that nothing was fitted to, of the tables of held-out rows and of servers."""
    return published_errors(pl.Roofline())


KINDS = [("decode", 1), ("decode", 2), ("prefill", 4), ("mixed", 1)]


@pytest.mark.parametrize(("phase", "degree"), KINDS)
def test_a_rate_is_expected_in_the_band_of_its_kind(published, phase, degree):
    """By hand: the quantiles of rows like the slowest stage, of all engines if its own has too few; links are exact."""
    kind, node = ("A10", "") if degree == 1 else ("H100-SXM", "node")
    link = 1e-3 if phase == "prefill" else 1.0
    problem = pl.Problem(
        pl.Cluster((pl.GPU(kind, 85, None, node, 450.0),) * 2 * degree, np.full((2 * degree, 2 * degree), link)),
        pl.load_model("Llama-3-8B"), pl.Workload(2048, 1, phase, 1), pl.Roofline(prefer="time"),
        max_gpus_per_stage=degree, same_type_stages=False,
    )  # fmt: skip
    plan = pl.Placement.of([(n, tuple(range(i, i + degree))) for n, i in ((16, 0), (16, degree))])
    evaluation = pl.evaluate(problem, plan)
    assert {stage.degree for stage in evaluation.stages} == {degree}
    layout = "one GPU" if degree == 1 else "tensor parallelism"
    alike = published[~published["experts"] & (published["phase"] == phase)]
    alike = alike[alike["layout"] == layout]
    same = alike[alike["engine"] == "vLLM"]
    rows = same if len(same) >= LEAST_TIMES else alike
    ends = [rows["error"].quantile(q) for q in (0.1, 0.9)]
    slowest = min(stage.throughput for stage in evaluation.stages)
    links = min(report.throughput for report in evaluation.links)
    expected = pl.hardware.expected_rate(problem, evaluation)
    by_hand = [min(slowest * (1 + e), links) for e in ends]
    assert [expected.low, expected.high] == pytest.approx(by_hand)
    assert f"{ends[0]:+.0%} to {ends[1]:+.0%}" in expected.sentence
    if phase == "prefill":
        assert problem.costs.band(problem, plan).sentence in expected.sentence
    else:  # microbatches never wait here; pipelines that were measured did
        measured = 1 / (1 + pl.hardware.against_pipelines()["synchronous_rate_error"])
        assert f"ran at {measured.median():.0%} of such a rate" in expected.sentence
    assert ("No published time of A10" in expected.sentence) == (degree == 1)
    farthest = max(abs(x / evaluation.throughput - 1) for x in by_hand)
    assert expected.within == pytest.approx(farthest)


def _problem(phase, experts, gpus, node, largest, engine):
    cluster = pl.Cluster(
        (pl.GPU("H200-SXM", 150, None, node, 450.0),) * gpus, np.full((gpus, gpus), 450.0)
    )
    model = pl.load_model("Qwen3-235B-A22B" if experts else "Llama-3-8B", precision="fp8")
    load = pl.Workload(512, 8, phase, 64)
    return pl.Problem(
        cluster, model, load, pl.Roofline(engine=engine), largest, same_type_stages=False
    )


def test_every_group_of_published_times_has_its_band_and_no_other(published):
    """Median, worst and number are those of the rows, and fewer than ten of them say nothing."""
    keys = ["phase", "experts", "layout", "engine"]
    groups = dict(list(published["error"].abs().groupby([published[key] for key in keys])))
    combinations = product(
        ("prefill", "decode", "mixed"), (False, True), ((1, "", 1), (2, "node", 2), (2, "", 1), (2, "node", 1)),
        ("vLLM", "SGLang", "TensorRT-LLM", "llama.cpp"),
    )  # fmt: skip
    many = few = 0
    for phase, experts, (gpus, node, largest), engine in combinations:
        problem = _problem(phase, experts, gpus, node, largest, engine)
        band = problem.costs.band(problem)
        layout = "one GPU" if gpus == 1 else "tensor parallelism" if largest > 1 else "pipeline"
        errors = groups.get((phase, experts, layout, engine), pd.Series(dtype=float))
        assert band.group == (phase, experts, layout, engine, "")
        assert band.measurements == len(errors)
        if len(errors) < 10:
            few += 1
            assert (band.median, band.worst) == (None, None)
            assert "not known" in band.sentence
        else:
            many += 1
            assert (band.median, band.worst) == (errors.median(), errors.max())
            assert f"{band.median:.1%}" in band.sentence
    assert min(many, few) > 5


def test_the_band_is_that_of_the_attainable_rate():
    """With fewer in flight than fill the pipeline, all of a traversal's stages are off, and not the slowest alone."""
    load = pl.Workload(2048, 8, "decode", in_flight=2)
    cluster = pl.Cluster.from_counts({"L4": 4}, 24, 1)
    problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline())
    found = pl.evaluate(problem, pl.Placement.of([(8, (g,)) for g in range(4)]))
    assert found.attainable < 0.6 * found.rate
    expected = pl.hardware.expected_rate(problem, found)
    assert expected.low < found.attainable < expected.high < found.rate


def test_a_result_shows_the_band_where_its_costs_know_one():
    cluster = pl.Cluster.from_counts({"L4": 2}, 24, 1)
    load, roof = pl.Workload(2048, 1, "decode"), pl.Roofline()
    problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, roof)
    result = pl.solve(problem)
    expected = pl.hardware.expected_rate(problem, result.evaluation)
    assert expected.sentence in result._repr_html_()
    assert f"within={expected.within:.2f}" in result._repr_html_()
    assert "Expect" not in pl.solve(pl.load_case("tiny"))._repr_html_()


@pytest.mark.slow
def test_no_row_is_among_those_that_were_fitted():
    """The same time of the same model, engine, GPUs and batch; a request's is per token."""
    fitted = pl.hardware.against_measured()
    tokens = np.where(fitted["phase"] == "prefill", fitted["tokens"], 1) * fitted["batch"]
    seconds = np.where(
        fitted["unit"] == "ms", fitted["measured"] / 1000, tokens / fitted["measured"]
    )
    known = fitted.assign(seconds=seconds, tensor_parallel=fitted["tensor_parallel"].fillna(1))
    for row in ROWS.itertuples():
        of_row = ["engine", "gpu_type", "model", "batch", "tensor_parallel"]
        same = known[np.all([known[c] == getattr(row, c) for c in of_row], axis=0)]
        seconds = row.seconds / row.output if row.phase == "request" else row.seconds
        phase = "decode" if row.phase == "request" else row.phase
        same = same[same["phase"] == phase]
        assert not np.isclose(same["seconds"], seconds, rtol=2e-3).any(), row


def _experts(model, phase):
    gpus = [pl.GPU("H200-SXM", 150.755, None, "node", 450.0)] * 8
    cluster = pl.Cluster(gpus, [[450.0] * 8] * 8)
    model, load = pl.load_model(model, precision="fp8"), pl.Workload(2048, 8, phase)
    return pl.Problem(cluster, model, load, pl.Roofline(engine="SGLang"), 8, same_type_stages=False)


@pytest.mark.slow
def test_prompts_that_a_mixture_of_experts_reads_alone_have_no_band_and_say_so(published):
    """Published times of mixtures are of whole requests, and of servers that read prompts between tokens."""
    alone = (published["experts"] & (published["phase"] == "prefill")).sum()
    assert alone < LEAST_TIMES
    problem = _experts("DeepSeek-V3", "prefill")
    plan = pl.Placement.of([(61, tuple(range(8)))])
    given = pl.hardware.expected_rate(problem, pl.evaluate(problem, plan))
    assert (given.low, given.high, given.within) == (None, None, None)
    assert (
        f"Only {alone} published time is of this kind (prefill, mixtures of experts)"
        in given.sentence
    )
    deployed = pl.deploy(replace(problem, max_gpus_per_stage=2), time_limit=1)
    for found in (pl.solve(problem, time_limit=5), deployed):
        assert found.doubt == given.sentence
        assert given.sentence in str(found)
        assert given.sentence in found._repr_html_()
    decode = _experts("Mixtral-8x7B", "decode")
    given = pl.hardware.expected_rate(
        decode, pl.evaluate(decode, pl.Placement.of([(32, tuple(range(8)))]))
    )
    assert given.low < given.high
    alike = (published["experts"] & (published["phase"] == "decode")).sum()
    kind = f"of {alike} published times of this kind (decode, mixtures of experts)"
    assert kind in given.sentence
    assert pl.solve(decode, time_limit=5).doubt == ""


def test_models_with_kinds_of_layers_that_none_measured_has_have_no_band(tmp_path):
    """States, selected attention and weights in 4-bit floats, by words in configurations."""
    words = {
        "states": ("ssm_state_size", "linear_key_head_dim"),
        "selected": ("index_topk", "compress_ratios"),
        "4-bit floats": ("fp4",),
    }
    configs = json.loads(Path("tests/data/model_configs.json").read_text(encoding="utf-8"))
    for name, published in configs.items():
        path = tmp_path / "config.json"
        path.write_text(json.dumps(published["config.json"]), encoding="utf-8")
        served = _problem("mixed", False, 2, "node", 2, "SGLang")
        problem = replace(served, model=pl.load_model(path))
        stated = [kind for kind, of in words.items() if any(w in path.read_text() for w in of)]
        sentence = problem.costs.band(problem).sentence
        assert stated == [kind for kind in words if kind in sentence], name
        assert ("not known" in sentence) == bool(stated), name
