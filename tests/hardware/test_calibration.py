"""Constants of engines and GPUs: predicted from others, fitted to a user's own rows."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pipelab as pl
from pipelab.files.bundled_folders import data_dir, in_clone
from pipelab.hardware.calibration import ConstantsFit, fit_constants
from pipelab.hardware.measurements import held_out_errors
from pipelab.hardware.published_times import Traversal, read_measurements

TABLE = read_measurements(data_dir() / "measured_times.csv")
ROWS = [one for _, one in TABLE]

# The rule, written down before anything was fitted: 0.7 of the peak, 0.42 where a card of 75 W
# cannot hold its clock; 0.8 of the bandwidth, of which attention reaches 0.6 when it reads keys and
# values (0.3 where it is not fused); 20 µs a layer with CUDA graphs, 90 µs without; 10 µs an
# all-reduce over NVLink with graphs, and 15 µs without, and 20 µs more for every GPU beyond two, as
# launches then hide behind less work; four times that over PCIe; half a millisecond a step to
# schedule and sample, 2 in 2023, and 0.7 to tell several processes in Python; per sequence 10 µs, 300
# in 2023; llama.cpp without fused attention, in 2024, moves 32 bytes per pair of tokens and head, and its
# kernels reach 0.65 as much of HBM.
GRAPHS = {
    "prefill_efficiency": 0.9, "layer_overhead_us": 20, "step_overhead_us": 500,
    "sequence_overhead_us": 10, "allreduce_us": 10,
}  # fmt: skip
RULE = {
    "kernels": {"prefill_efficiency": 1.0, "layer_overhead_us": 20, "step_overhead_us": 0},
    "vLLM": GRAPHS | {"tensor_parallel_us": 700},
    "TensorRT-LLM": GRAPHS,
    "vLLM 0.2": {
        "prefill_efficiency": 0.9, "layer_overhead_us": 90, "step_overhead_us": 2000,
        "sequence_overhead_us": 300, "allreduce_us": 15, "allreduce_hop_us": 20, "large_allreduce": 0.5,
    },
    "llama.cpp": {"prefill_efficiency": 0.65, "layer_overhead_us": 20, "step_overhead_us": 100},
    "llama.cpp 2024": {
        "prefill_efficiency": 0.65, "layer_overhead_us": 30, "step_overhead_us": 100,
        "score_bytes": 32, "hbm_efficiency": 0.8 * 0.65, "kv_efficiency": 0.3,
    },
}  # fmt: skip


def _by_rule():
    today = pl.Roofline()
    common = {
        "memory_efficiency": 0.8, "hbm_efficiency": 0.8, "decode_overlap": 0.65,
        "link_efficiency": 0.4, "kv_efficiency": 0.6, "pcie_allreduce_us": 40,
    }  # fmt: skip
    engines = {name: replace(today.engines[name], **common | own) for name, own in RULE.items()}
    gpus = {
        name: replace(facts, compute_efficiency=0.42 if name in ("L4", "T4") else 0.7)
        for name, facts in today.gpus.items()
    }
    return replace(today, gpus=gpus, engines=engines)


def _groups(rows):
    """The groups of at least five rows for which a target was set, and all."""
    one, four = (
        [row.tensor_parallel in range(*ends) for row in rows] for ends in ((1, 2), (4, 99))
    )
    decode, prefill = (np.array([row.phase == x for row in rows]) for x in ("decode", "prefill"))
    return {
        "all": decode | ~decode,
        "decode, one GPU": decode & one,
        "decode, 4 and more": decode & four,
        "prefill, one GPU": prefill & one,
    }


@pytest.mark.nightly
@pytest.mark.parametrize("by", ["gpu_type", "source"])
def test_a_gpu_type_or_source_is_predicted_from_the_others(by):
    """Nothing of the rows that are predicted is known to the fit, nor to the rule it starts from."""
    names = [row.cells[by].split("@")[0].split(" ")[0] for row, _ in TABLE]
    errors = np.abs(ConstantsFit(_by_rule(), ROWS).errors_from_others(names))
    for name, members in _groups(ROWS).items():
        target = 0.08 if name == "all" else 0.12
        assert np.median(errors[members]) < target, name
    if in_clone():
        low, high = re.search(r"(\d+) to (\d+)%", _readme()).groups()
        assert int(low) <= round(100 * np.median(errors)) <= int(high)


def _readme():
    """What the README says of the errors."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    return readme.split("The median error of")[1].split(". `")[0]


@pytest.mark.slow
@pytest.mark.skipif(not in_clone(), reason="about the README of a clone")
def test_the_readme_says_the_median_error_on_the_rows_of_the_fit():
    said = _readme()
    percent, rows = re.search(r"is ([\d.]+)%\s+on the (\d+) measurements", said).groups()
    errors = pl.hardware.against_measured()["error"].abs()
    assert (f"{percent}%", int(rows)) == (f"{errors.median():.1%}", len(errors))
    percent, rows = re.search(r"(\d+)% on\s+(\d+) more", said).groups()
    errors = held_out_errors()["error"].abs()
    assert (f"{percent}%", int(rows)) == (f"{errors.median():.0%}", len(errors))
    served = pl.hardware.against_served()
    experts = served["model"].map(lambda name: pl.load_model(name).has_experts)
    rows, dense, mixtures = re.search(
        r"of (\d+) times per token .*?(\d+)% .*?(\d+)% with", said, re.DOTALL
    ).groups()
    medians = served["tpot_error"].abs().groupby(experts).median()
    assert (int(rows), f"{dense}%", f"{mixtures}%") == (
        len(served),
        f"{medians[False]:.0%}",
        f"{medians[True]:.0%}",
    )


def _file(tmp_path, rows):
    path = tmp_path / "mine.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def _row(costs, gpu, phase, tokens, factor, batch=1, what=None):
    model, load = pl.load_model("Llama-3-8B"), pl.Workload(tokens, batch, phase)
    seconds = costs.pass_seconds(model, load, pl.GPU(gpu, 24), range(32))
    return {
        "what": what or f"{gpu} {phase} {tokens} {batch}", "model": "Llama-3-8B", "gpu_type": gpu,
        "engine": costs.engine, "phase": phase, "batch": batch, "tokens": tokens,
        "measured": 1000 * seconds * factor, "unit": "ms",
    }  # fmt: skip


@pytest.mark.slow
def test_three_rows_help_and_leave_the_rest_alone(tmp_path):
    costs = pl.Roofline()
    rows = [_row(costs, "L4", "prefill", n, 1.3) for n in (512, 1024, 2048)]
    found = pl.hardware.calibrate(costs, _file(tmp_path, rows))
    assert found.table["before"].abs().median() == pytest.approx(1 - 1 / 1.3, abs=1e-6)
    assert found.table["after"].abs().max() < 0.05
    assert found.table["left_out"].abs().max() < 0.08
    assert found.costs.gpus["L4"].compute_efficiency < 0.95 * costs.gpus["L4"].compute_efficiency
    assert found.costs.gpus["L4"].memory_factor == pytest.approx(1, abs=0.02)
    assert found.costs.engines["llama.cpp"] == costs.engines["llama.cpp"]
    measurements = [one for _, one in read_measurements(tmp_path / "mine.csv")]
    alone = ConstantsFit(costs, measurements).errors_from_others(["a", "b", "c"])
    assert alone == pytest.approx(found.table["left_out"].to_numpy())


def test_right_rows_change_nothing_and_one_row_is_a_calibration_too(tmp_path):
    costs = pl.Roofline()
    rows = [_row(costs, "T4", "decode", 256 * n, 1.0) for n in (1, 2, 3)]
    found = pl.hardware.calibrate(costs, _file(tmp_path, rows))
    assert found.table[["before", "after", "left_out"]].abs().max().max() < 1e-6
    assert found.costs.gpus["T4"].compute_efficiency == pytest.approx(0.41)
    one = pl.hardware.calibrate(costs, _file(tmp_path, [_row(costs, "L4", "decode", 512, 1.2)]))
    assert abs(one.table["after"][0]) < 0.1
    assert one.table["left_out"][0] == pytest.approx(one.table["before"][0])


@pytest.mark.slow
def test_a_row_that_contradicts_the_others_is_outvoted(tmp_path):
    costs = pl.Roofline()
    rows = [_row(costs, "L4", "decode", 128 * n, 1.0, what=f"row {n}") for n in range(1, 7)]
    rows.append(_row(costs, "L4", "decode", 640, 3.0, what="the strange one"))
    found = pl.hardware.calibrate(costs, _file(tmp_path, rows))
    assert found.table["after"][:6].abs().max() < 0.1  # one row of seven moves the rest a little


@pytest.mark.slow
def test_what_was_measured_is_slower_than_physics():
    """The floor holds for every published time that is bundled."""
    costs = pl.Roofline()
    assert [one.what for one in ROWS if one.too_fast(costs)] == []
    floors = [Traversal(one, costs).least(costs.gpus[one.gpu_type])[0] for one in ROWS]
    ratios = [one.milliseconds / floor for one, floor in zip(ROWS, floors, strict=True)]
    assert 1.12 < min(ratios) < 1.13  # as notebooks/data.md says


@pytest.mark.parametrize(
    ("phase", "gpu", "precision", "named"),
    [
        ("decode", "L4", "bf16", "GB of weights, keys and values at 300 GB/s"),
        ("prefill", "L4", "bf16", "TFLOP at 121 TFLOP/s"),
        ("prefill", "L4", "fp8", "TFLOP at 242.5 TFLOP/s"),
        ("prefill", "RTX4090", "bf16", "TFLOP at 330.3 TFLOP/s"),  # that add up in 16 bits
    ],
)
def test_a_time_below_what_physics_needs_is_refused_with_the_floor(
    tmp_path, phase, gpu, precision, named
):
    costs, tokens = pl.Roofline(), 512
    model, facts = pl.load_model("Llama-3-8B", precision=precision), pl.hardware.load_gpus()[gpu]
    layer = sum(model.weight_gb(range(i, i + 1)) for i in range(1, 31)) / 30
    bytes_moved = 32e9 * layer + 2 * model.vocab * model.d_model + 32 * tokens * model.kv_bytes
    # of attention: half of all pairs, four FLOPs a number
    each = 2 * tokens * model.layer_parameters() + model.heads * model.head_dim * 2 * tokens**2
    flops = 32 * each + 2 * model.vocab * model.d_model
    peak = {"bf16": facts.fp16_accumulate_tflop_per_s, "fp8": facts.fp8_tflop_per_s}.get(precision)
    least = bytes_moved / facts.memory_bandwidth_gb_per_s / 1e6
    if phase == "prefill":
        least = flops / (peak or facts.fp16_tflop_per_s) / 1e9
    row = {
        "what": "mine", "model": "Llama-3-8B", "gpu_type": gpu, "phase": phase, "batch": 1, "engine": "",
        "tokens": tokens, "measured": 1.01 * least, "unit": "ms", "precision": precision,
    }  # fmt: skip
    assert len(pl.hardware.calibrate(costs, _file(tmp_path, [row])).table) == 1
    file = _file(tmp_path, [row | {"measured": 0.99 * least}])
    with pytest.raises(pl.errors.InvalidData) as refused:
        pl.hardware.calibrate(costs, file)
    for said in (
        f"{file}, row 2, column 'measured'",
        f"less than the {least:.4g} ms that {gpu} takes for ",
        named,
    ):
        assert said in str(refused.value)


@pytest.mark.slow
def test_several_files_are_one_calibration(tmp_path):
    costs = pl.Roofline()
    rows = [_row(costs, "L4", "decode", 512, 1.2), _row(costs, "A100-SXM-80", "decode", 512, 1.1)]
    for number, row in enumerate(rows):
        _file(tmp_path, [row]).rename(tmp_path / f"{number}.csv")
    together = pl.hardware.calibrate(costs, [tmp_path / "0.csv", str(tmp_path / "1.csv")])
    assert list(together.table["what"]) == [row["what"] for row in rows]
    bench = Path(__file__).parents[1] / "data" / "measured" / "llama_bench.json"
    files = [tmp_path / "0.csv", tmp_path / "1.csv", bench]
    stated = pl.hardware.calibrate(costs, files, gpu_type="RTX3090")  # of what other tools wrote
    assert len(stated.table) == 2 + len(json.loads(bench.read_text("utf-8")))
    assert "RTX3090" in set(stated.constants["of"])
    with pytest.raises(pl.errors.InvalidValue, match="contains this"):
        pl.hardware.calibrate(costs, [tmp_path / "0.csv"], gpu_type="L4")
    with pytest.raises(pl.errors.InvalidValue, match="at least one file"):
        pl.hardware.calibrate(costs, [])


@pytest.mark.nightly
def test_shipped_constants_are_near_what_the_bundled_rows_fit():
    found = fit_constants(pl.Roofline(), ROWS)
    moved = (found.constants["fitted"] / found.constants["default"] - 1).abs()
    assert moved.max() < 0.3
    assert found.table["after"].abs().median() < 0.06
