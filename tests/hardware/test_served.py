"""Served models: what is predicted for servers with many requests at once, and how far off that is."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import pipelab as pl
from pipelab.files.bundled_folders import data_dir

TABLE = pl.hardware.against_served()
SERVED = pd.read_csv(data_dir() / "served_times.csv")


def _file(tmp_path, rows):
    path = tmp_path / "served.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("seed", range(3))
def test_errors_are_predicted_over_measured_times(tmp_path, seed):
    """Random rows of the table, each time longer by a factor: predicted times stay."""
    rng = np.random.default_rng(seed)
    rows = SERVED.sample(20, random_state=seed)
    factors = rng.uniform(0.5, 2.0, (20, 2))
    changed = rows.assign(
        tpot_ms=rows["tpot_ms"] * factors[:, 0], ttft_ms=rows["ttft_ms"] * factors[:, 1]
    )
    table = pl.hardware.against_served(path=_file(tmp_path, changed))
    was = TABLE.set_index("id").loc[rows["id"]]
    for column, factor in zip(("tpot_error", "ttft_error"), factors.T, strict=True):
        assert (1 + table[column]).to_numpy() == pytest.approx(
            ((1 + was[column]) / factor).to_numpy(), nan_ok=True
        )
    assert list(table["id"]) == list(rows["id"])


@pytest.mark.parametrize("seed", range(3))
def test_a_request_takes_the_passes_of_its_answer(seed):
    """TTFT and o − 1 times TPOT are o passes of the mixed load, where memory holds all requests."""
    costs, checked = pl.Roofline(), 0
    for row in TABLE.sample(60, random_state=seed).itertuples():
        engine = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"}[row.engine]
        model = pl.load_model(row.model, precision="fp8" if row.fp8 else "bf16")
        if row.fp8 and row.model in ("Llama-3-70B", "DeepSeek-V3"):
            model = replace(model, kv_precision="fp8")
        kind = row.gpu.replace("B200-SXM", "B200")
        facts = costs.gpus[kind]
        gpu = pl.GPU(kind, facts.memory_gb, None, "node", facts.link_gb_per_s)
        load = pl.Workload(row.prompt_tokens, row.concurrent_requests, "mixed", row.output_tokens)
        one = costs.running(engine).pass_seconds(
            model, load, gpu, range(model.layers), row.tensor_parallel
        )
        held = (
            model.weight_gb(range(model.layers)) / row.tensor_parallel
            + row.concurrent_requests
            * model.layers
            * (row.prompt_tokens + row.output_tokens)
            * model.kv_bytes
            / min(row.tensor_parallel, model.kv_parts)
            / 1e9
        )
        if held < 0.85 * gpu.memory_gb:
            checked += 1
            tpot, ttft = row.tpot_ms * (1 + row.tpot_error), row.ttft_ms * (1 + row.ttft_error)
            assert ttft + (row.output_tokens - 1) * tpot == pytest.approx(
                1000 * row.output_tokens * one
            )
        elif held > gpu.memory_gb:  # the others wait
            assert not 1000 * one < row.tpot_ms * (1 + row.tpot_error)
    assert checked > 20


def test_weights_that_the_gpus_cannot_hold_have_no_prediction():
    """And only those."""
    gpus = pl.hardware.load_gpus()
    for row in TABLE.itertuples():
        model = pl.load_model(row.model, precision="fp8" if row.fp8 else "bf16")
        memory = gpus[row.gpu.replace("B200-SXM", "B200")].memory_gb
        held = model.weight_gb(range(model.layers)) / row.tensor_parallel < 0.9 * memory
        assert np.isfinite(row.tpot_error) == np.isfinite(row.ttft_error) == held, row


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("model", "Qwen3-33B", "no such model"),
        ("gpu", "H201", "H200"),
        ("engine", "vvlm", "vLLM"),
        ("tpot_ms", 0, "tpot_ms"),
    ],
)
def test_what_is_not_known_is_named_with_its_place(tmp_path, column, value, named):
    path = _file(tmp_path, SERVED.iloc[:2].assign(**{column: value}))
    with pytest.raises(pl.errors.InvalidData, match=f"row 2, column '{column}'") as refused:
        pl.hardware.against_served(path=path)
    assert named in str(refused.value)


# The greatest median error of TPOT: what was set as a goal, or what is reached.
GROUPS = {"dense": 0.065, "dense, SGLang": 0.18, "Qwen3-235B-A22B": 0.14, "DeepSeek-V3": 0.18}


def test_served_models_are_predicted():
    dense = ~TABLE["model"].isin(["Qwen3-235B-A22B", "DeepSeek-V3"])
    sglang = TABLE["engine"] == "sglang"
    groups = {"dense": dense & ~sglang, "dense, SGLang": dense & sglang}
    for name, limit in GROUPS.items():
        inside = groups.get(name, TABLE["model"] == name)
        assert TABLE.loc[inside, "tpot_error"].abs().median() < limit, name
