"""Files of llama-bench, vLLM and SGLang, as `calibrate` reads them."""

import csv
import json
import random
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

import pipelab as pl
from pipelab.hardware.benchmark_files import StatedFacts, measurements_of
from pipelab.hardware.quantisation import stored_in
from spoiling import read_or_refused

FILES = Path(__file__).parents[1] / "data" / "measured"
BENCH, SERVE, LATENCY = (
    FILES / name for name in ("llama_bench.json", "vllm_serve.jsonl", "vllm_latency.json")
)
ROOF = pl.Roofline()


def _rows(path, **stated):
    return measurements_of(path, StatedFacts(**stated), ROOF)


def _refused(words):
    return pytest.raises(pl.errors.InvalidData, match=words)


def _as(rows):
    return [(row.phase, row.batch, row.tokens, row.milliseconds) for row in rows]


def test_llama_bench_says_gpu_model_and_precision(tmp_path):
    rows = _rows(BENCH)
    assert _as(rows) == [
        ("prefill", 1, 1024, pytest.approx(1000 * 1024 / 9056.26, rel=1e-6)),
        ("decode", 1, 512, pytest.approx(1000 / 54.34, rel=1e-6)),  # half of what it makes
    ]
    known = {(row.model, row.gpu_type, row.engine, row.precision) for row in rows}
    assert known == {("Llama-3-8B", "RTX4090", "llama.cpp", "fp16")}
    lines = tmp_path / "bench.jsonl"
    lines.write_text("\n".join(json.dumps(one) for one in json.loads(BENCH.read_text())))
    assert _as(_rows(lines)) == _as(rows)
    found = pl.hardware.calibrate(ROOF, BENCH)
    assert found.table["after"].abs().max() < found.table["before"].abs().max()
    assert set(found.constants["of"]) == {"llama.cpp", "RTX4090"}


def _as_csv(results):
    table = pd.DataFrame(results).replace({True: 1, False: 0})
    return table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC)


def _as_markdown(results):
    rows = [
        "| model | size | params | backend | ngl | test | t/s |",
        "| --- | ---: | --- | --- | --- | --- | ---: |",
    ]
    for one in results:
        tokens = one["n_prompt"] or one["n_gen"]
        test = f"{'pp' if one['n_prompt'] else 'tg'}{tokens}"
        size, speed = f"{one['model_n_params'] / 1e9:.2f} B", tokens * 1e9 / one["avg_ns"]
        model, layers = one["model_type"], one["n_gpu_layers"]
        rows.append(
            f"| {model} | 14.96 GiB | {size} | CUDA | {layers} | {test} | {speed:.2f} ± 1.50 |"
        )
    return "\n".join(["ggml_cuda_init: found 1 CUDA devices:", *rows, "", "build: 8cf427ff (5163)"])


@pytest.mark.parametrize("printed", [_as_csv, _as_markdown])
def test_llama_bench_says_the_same_in_all_its_forms(printed, tmp_path):
    results = [
        {key: value for key, value in one.items() if not isinstance(value, list)}
        for one in json.loads(BENCH.read_text())
    ]
    path = tmp_path / "bench.txt"
    path.write_text(printed(results))
    rows = _rows(path, gpu_type="RTX4090")
    assert [row[:3] for row in _as(rows)] == [row[:3] for row in _as(_rows(BENCH))]
    for one, other in zip(rows, _rows(BENCH), strict=True):
        assert one.milliseconds == pytest.approx(other.milliseconds, rel=1e-4)
        for name in ("model", "precision", "engine"):
            assert getattr(one, name) == getattr(other, name)


LABELS = {  # of vLLM's table, SGLang's and TensorRT-LLM's
    "vLLM": ("Successful requests", "Maximum request concurrency", "Total input tokens", "Total generated tokens",
             "Median TTFT (ms)", "Median TPOT (ms)"),
    "SGLang": ("Successful requests", "Max request concurrency", "Total input tokens", "Total generated tokens",
               "Median TTFT (ms)", "Median TPOT (ms)"),
    "TensorRT-LLM": ("Number of requests", "Number of concurrent requests", "Average Input Length (tokens)",
                     "Average Output Length (tokens)", "[TTFT] P50    ", "[TPOT] P50    "),
}  # fmt: skip


@pytest.mark.parametrize("form", [*LABELS, "report"])
def test_a_table_that_is_printed_has_the_times_of_its_json(form, tmp_path):
    """Several runs in one file, too; of trtllm-bench also its report."""
    results, texts = [json.loads(line) for line in SERVE.read_text().splitlines()], []
    for one in results:
        n = one["completed"]
        numbers = [n, one["max_concurrency"], one["total_input_tokens"], one["total_output_tokens"],
                   one["median_ttft_ms"], one["median_tpot_ms"]]  # fmt: skip
        if form in ("TensorRT-LLM", "report"):
            numbers[1:4] = [f"{numbers[1]:.4f}", numbers[2] / n, numbers[3] / n]
        if form == "report":
            inner = {"num_requests": n, "avg_num_concurrent_requests": float(numbers[1]),
                     "avg_input_length": numbers[2], "avg_output_length": numbers[3]}  # fmt: skip
            kinds = ("ttft_percentiles", "tpot_percentiles")
            times = {kind: {"p50": x} for kind, x in zip(kinds, numbers[4:], strict=True)}
            texts.append(json.dumps({"engine": {"model": one["model_id"]}, "world_info": {"tp_size": 1, "pp_size": 1},
                                     "request_info": inner, "streaming_metrics": times}))  # fmt: skip
            continue
        lines = [f"{label}: {number}" for label, number in zip(LABELS[form], numbers, strict=True)]
        heading = "============ Serving Benchmark Result ============"
        lines.insert(0, "Backend:      sglang" if form == "SGLang" else "Traffic request rate: inf")
        if form == "TensorRT-LLM":
            lines.insert(4, "= PERFORMANCE OVERVIEW")
            heading = "TP Size:      1"
        texts.append("\n".join([heading, *lines, "=" * 50, ""]))
    path = tmp_path / "bench.out"
    path.write_text("\n".join(texts if form != "TensorRT-LLM" else texts[:1]))
    engine = {"report": "TensorRT-LLM"}.get(form, form)
    said = {"gpu_type": "H100-SXM", "model": "Llama-3-8B", "precision": "bf16"}
    rows = _rows(path, **said, **({"engine": engine} if form == "vLLM" else {}))
    expected = _rows(SERVE, **said)
    assert _as(rows) == _as(expected)[: len(rows)]
    assert len(rows) == (2 if form == "TensorRT-LLM" else len(expected))
    assert {row.engine for row in rows} == {engine}


def test_any_model_is_measured_by_its_configuration(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    }))  # fmt: skip
    rows = _rows(BENCH, model=str(config))
    assert _as(rows) == _as(_rows(BENCH))


PUBLISHED = {  # what is stated of each file, and by how much its times per token are off at most
    "gpt-oss-20b.md": ({"gpu_type": "GB10", "model": "gpt-oss-20b"}, 0.07),
    "gpt-oss-120b.md": ({"gpu_type": "GB10", "model": "gpt-oss-120b"}, 0.06),
    "qwen3-30b-a3b.md": ({"gpu_type": "GB10"}, 0.04),
    "glm-4.5-air.md": ({"gpu_type": "Strix-Halo-40c", "model": "GLM-4.5-Air"}, 0.07),
    "minimax-m2.md": ({"gpu_type": "Strix-Halo-40c", "model": "MiniMax-M2.5"}, 0.28),
    "nemotron-3-nano.txt": ({"gpu_type": "Strix-Halo-40c", "model": "Nemotron-3-Nano-30B-A3B"}, 0.11),
    "gemma-4-26b-a4b.txt": ({"gpu_type": "R9700", "model": "Gemma-4-26B-A4B"}, 0.44),
    "llama-bench.csv": ({}, 0.07),
    "llama-bench.jsonl": ({}, 0.07),
    "vllm-deepseek-r1.txt": (
        {"gpu_type": "MI300X", "model": "DeepSeek-V3", "precision": "fp8", "engine": "vLLM",
         "tensor_parallel": 8, "node_gb_per_s": 448.0}, 0.5,
    ),
}  # fmt: skip


def test_published_files_are_read_as_they_are(tmp_path):
    """Each has a time per token at least; of files of mixed types only their size says the bytes of a weight."""
    configs = json.loads((FILES.parent / "model_configs.json").read_text())
    for name, (stated, off) in PUBLISHED.items():
        if (model := stated.get("model")) in configs and model not in pl.hardware.models().index:
            (tmp_path / f"{model}.json").write_text(json.dumps(configs[model]["config.json"]))
            stated = {**stated, "model": str(tmp_path / f"{model}.json")}
        rows = _rows(FILES / "published" / name, **stated)
        errors = [
            one.predicted(ROOF) / one.milliseconds - 1 for one in rows if one.phase == "decode"
        ]
        assert max(map(abs, errors)) < off, (name, errors)


def test_a_size_is_spread_over_all_weights_but_experts_in_4_bit_floats():
    for precision, each in (("int4", 0.7), ("mxfp4", 17 / 32)):
        model = pl.load_model("Qwen3-30B-A3B", precision=precision)
        stored = stored_in(model, 0.7e-9 * model.parameters())
        assert stored.parameters() == model.parameters()
        read = stored.layer_bytes(stored.layer_kinds[0], only_routed=True)
        assert read == pytest.approx(each * model.layer_kinds[0].routed)
        embedding = model.vocab * model.d_model * (stored.head_bytes_each - model.kept_bytes)
        whole = 1e9 * stored.weight_gb(range(model.layers)) + embedding
        assert whole == pytest.approx(0.7 * model.parameters())
    with pytest.raises(pl.errors.InvalidValue, match="expected one whose experts take less"):
        stored_in(model, 1.0)


@pytest.mark.slow
def test_vllm_serve_is_decode_at_each_concurrency_and_prefill_where_none_waits():
    rows = _rows(SERVE, gpu_type="H100-SXM")
    assert _as(rows) == [
        ("prefill", 1, 1024, 41.0), ("decode", 1, 1088, 7.2), ("decode", 8, 1088, 8.1), ("decode", 32, 1088, 11.4),
    ]  # fmt: skip
    assert {(r.model, r.engine, r.precision) for r in rows} == {("Llama-3-8B", "vLLM", "bf16")}
    assert len(pl.hardware.calibrate(ROOF, SERVE, gpu_type="H100-SXM").table) == 4
    with _refused("on which GPU it ran; give gpu_type=…"):
        pl.hardware.calibrate(ROOF, SERVE)


def test_vllm_latency_says_nothing_but_the_time():
    said = {"model": "Llama-3-8B", "gpu_type": "A100-SXM-80", "batch": 8, "tokens": 32}
    decode, prefill = (_rows(LATENCY, **said, output_tokens=n) for n in (128, 1))
    assert _as(decode) == [("decode", 8, 96, pytest.approx(1020 / 128))]
    assert _as(prefill) == [("prefill", 8, 32, 1020)]
    with _refused("cannot be told apart"):
        _rows(LATENCY, **said, output_tokens=100)
    for name in said:
        left = {k: v for k, v in said.items() if k != name}
        message = rf"vllm_latency\.json, result 1: .*give {name}=…"
        with _refused(message):
            pl.hardware.calibrate(ROOF, LATENCY, **left, output_tokens=128)


def _first(path):
    """The first result of a file."""
    found = json.loads(path.read_text().splitlines()[0] if path == SERVE else path.read_text())
    return found[0] if isinstance(found, list) else found


def _changed(path, tmp_path, **fields):
    new = tmp_path / path.name
    new.write_text(json.dumps(_first(path) | fields))
    return new


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (BENCH, {"gpu_info": "NVIDIA GeForce RTX 4085"}, r"RTX 4085': no type .*did you mean 'NVIDIA GeForce RTX"),
        (BENCH, {"model_n_params": 9876543210}, "no known model has this number of parameters; give model="),
        (BENCH, {"n_gen": 128}, "leave out -pg"),
        (BENCH, {"n_depth": 512}, "field 'n_depth': 512"),
        (BENCH, {"n_gpu_layers": 10}, "expected all 32 layers of Llama-3-8B"),
        (BENCH, {"model_type": "llama 8B TQ2_0 - 2.06 bpw"}, "give precision="),
        (BENCH, {"avg_ns": "12"}, "field 'avg_ns': '12': expected a number above 0"),
        (SERVE, {"max_concurrency": None}, "give batch="),
        (SERVE, {"model_id": "Qwen/Qwen3-8B"}, "no model has this name; .*give model="),
        (SERVE, {"model_id": "RedHatAI/Meta-Llama-3-8B-Instruct-FP8"}, "quantised weights; give precision="),
        (SERVE, {"median_tpot_ms": None}, "field 'median_tpot_ms': None"),
        (SERVE, {}, "ms is less than the .* ms that L4"),
    ],
)  # fmt: skip
def test_what_a_result_lacks_is_named(tmp_path, path, fields, message):
    new = _changed(path, tmp_path, **fields)
    said = {} if path == BENCH else {"gpu_type": "L4"}
    with _refused(message) as error:
        pl.hardware.calibrate(ROOF, new, **said)
    assert path.name in str(error.value)


def test_what_is_stated_counts(tmp_path):
    new = _changed(BENCH, tmp_path, gpu_info="NVIDIA GeForce RTX 4085", model_type="odd")
    (row,) = _rows(new, gpu_type="RTX3090", precision="int8", engine="kernels")
    assert (row.gpu_type, row.precision, row.engine) == ("RTX3090", "int8", "kernels")
    with _refused("Llama-2-7B has 6,738,415,616"):
        _rows(new, gpu_type="L4", precision="fp16", model="Llama-2-7B")
    with pytest.raises(pl.errors.UnknownName, match="did you mean 'Llama-3-8B'"):
        pl.hardware.calibrate(ROOF, BENCH, model="Llama-3-8b")
    with pytest.raises(pl.errors.InvalidValue, match=r"calibrate: batch = 0: expected at least 1"):
        pl.hardware.calibrate(ROOF, SERVE, batch=0)
    with pytest.raises(pl.errors.InvalidValue, match=r"calibrate: gpu = 'L4'"):
        pl.hardware.calibrate(ROOF, SERVE, gpu="L4")


@pytest.mark.parametrize("number", range(5))
def test_the_file_itself_may_say_what_its_benchmark_does_not(tmp_path, number):
    """As text, as `vllm bench serve --save-result --metadata …` writes it; what the caller states counts before it."""
    unsaid = {"backend": "openai", "max_concurrency": None}  # its defaults
    facts = {"gpu_type": "H100-SXM", "engine": "vLLM", "batch": 8, "tensor_parallel": 2}
    facts |= {"node_gb_per_s": 450}
    names = random.Random(number).sample(list(facts), number + 1)
    said = {name: str(facts[name]) if name in names else "1" for name in facts}
    stated = {name: fact for name, fact in facts.items() if name not in names}
    rows = _rows(_changed(SERVE, tmp_path, **unsaid, **said), **stated)
    assert rows == _rows(_changed(SERVE, tmp_path, **unsaid), **facts)


STATED = {
    "gpu_type": "A100-SXM-80", "model": "Llama-3-8B", "batch": 8, "tokens": 32, "output_tokens": 128, "phase": "decode",
    "engine": "vLLM",
}  # fmt: skip
ODD = [
    None, True, -1, 0, 10**400, 1e308, float("nan"), float("inf"), "", "x", "\x00", [], {}, [1], {"a": 1}, "9" * 5000,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", [BENCH, SERVE, LATENCY], ids=lambda path: path.name)
def test_odd_json_is_read_or_refused(path, tmp_path):
    new, one = tmp_path / path.name, _first(path)
    texts = ["[]", "[3]", "{}", "[" * 100_000, "\x00", path.read_text()[:40]]
    some = random.Random(0).choices([*product(one, ODD)], k=50)
    texts += [json.dumps(one | {field: odd}) for field, odd in some]
    for text in texts:
        new.write_text(text)
        read_or_refused(lambda: _rows(new, **STATED), path.name)


# Whose engine measured, by the backend that a benchmark names; None: nobody's, as many speak OpenAI's protocol, or
# that of an engine which is not known.
BACKENDS = {
    "vllm": "vLLM", "vllm-chat": "vLLM", "sglang": "SGLang", "sglang-oai-chat": "SGLang", "trt": "TensorRT-LLM",
    "tensorrt-llm": "TensorRT-LLM", "llama.cpp": "llama.cpp", "openai": None, "openai-chat": None, "": None, None: None,
    "tgi": None, "lmdeploy": None, "scalellm": None, "deepspeed-mii": None, "gserver": None, "mine": None, 7: None,
}  # fmt: skip
FORMS = {  # the result, the engine of a file that names none, and what is stated
    "serving": (SERVE, None, {"phase": "decode"}),
    "latency": (LATENCY, "vLLM", {"batch": 8, "tokens": 32, "output_tokens": 1}),
    "llama-bench": (BENCH, "llama.cpp", {"phase": "prefill"}),
}


def _written(tmp_path, fields):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.parametrize(
    "key", ["backend", pytest.param("endpoint_type", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("form", FORMS)
def test_a_time_counts_for_the_engine_that_was_measured_and_no_other(form, key, tmp_path):
    source, of_form, said = FORMS[form]
    said = {"gpu_type": "B200", "model": "Llama-3-8B", "precision": "bf16"} | said
    plain, fitted = _first(source), set()
    plain = {name: plain[name] for name in plain if name not in ("backend", "endpoint_type")}
    for backend, engine in BACKENDS.items():
        path = _written(tmp_path, plain | {key: backend})
        if form == "llama-bench" or not backend:
            engine = of_form
        if engine is None:
            with _refused(r"bench\.json, result 1.*give engine="):
                _rows(path, **said)
            assert _rows(path, **said | {"engine": "kernels"})[0].engine == "kernels"
            continue
        assert {row.engine for row in _rows(path, **said)} == {engine}
        if engine in fitted:
            continue
        fitted.add(engine)
        found = pl.hardware.calibrate(ROOF, path, **said)
        others = {name: one for name, one in found.costs.engines.items() if name != engine}
        assert others == {name: one for name, one in ROOF.engines.items() if name != engine}
        alone = pl.Roofline(engine="mine", engines={"mine": ROOF.engines["kernels"]})
        with _refused(rf"engine = '{engine}': .*give engine="):
            pl.hardware.calibrate(alone, path, **said)


# What llama-bench says of the GPUs that it used.
ONE_GPU = [
    {}, {"tensor_split": "0.00"}, {"tensor_split": "1.00/0.00"}, {"devices": "auto"}, {"devices": "CUDA0"},
    {"backends": "CUDA,Vulkan"}, {"split_mode": "none", "gpu_info": "NVIDIA L4, NVIDIA L4"},
    {"devices": "CUDA1", "gpu_info": "NVIDIA L4, NVIDIA L4"},
    {"tensor_split": "0/1", "gpu_info": "NVIDIA L4, NVIDIA L4"},
    {"n_gpu_layers": -1}, {"n_gpu_layers": 33}, {"fit_target": 0},
    {"split_mode": "none", "tensor_split": "1.00/1.00"}, {"devices": None},
]  # fmt: skip
OTHER_GPUS = [
    {"tensor_split": "1.00/1.00"}, {"tensor_split": "3/1/0"}, {"tensor_split": "0.70/0.30", "split_mode": "row"},
    {"devices": "CUDA0/CUDA1"}, {"devices": "RPC0[10.0.0.2:50052]"}, {"devices": "none"}, {"backends": "CUDA,RPC"},
    {"backends": "RPC"}, {"backends": "CPU"}, {"backends": "BLAS"},
    {"gpu_info": "NVIDIA L4, NVIDIA L4"}, {"gpu_info": "NVIDIA L4, NVIDIA L4", "split_mode": "layer"},
    {"n_gpu_layers": 0}, {"n_gpu_layers": 32}, {"n_cpu_moe": 1}, {"no_kv_offload": True}, {"fit_target": 1024},
    {"backends": "CUDA", "gpu_info": ""}, {"backends": "Vulkan", "gpu_info": ""},
    {"backends": 3}, {"devices": []},
]  # fmt: skip
# What vLLM's metadata and SGLang's server_info say of the GPUs, and how many cut a layer; None: split otherwise.
PARALLEL = {"tp": 2, "tp_size": 4, "tensor_parallel_size": "2", "tensor-parallel-size": 2}
COPIES = ("pp", "pp_size", "pipeline_parallel_size", "dp_size", "data_parallel_size")


def test_a_run_of_several_gpus_is_no_time_of_one(tmp_path):
    plain = json.loads(BENCH.read_text())[1]
    for fields in ONE_GPU:
        assert _rows(_written(tmp_path, plain | fields), gpu_type="RTX4090")
    for fields in OTHER_GPUS:
        path = _written(tmp_path, plain | fields)
        with _refused(rf"bench\.json, result 1, field '({'|'.join(fields)})'"):
            _rows(path, gpu_type="RTX4090")


@pytest.mark.parametrize("inside", [None, "server_info"])
@pytest.mark.parametrize("path", [SERVE, LATENCY], ids=lambda path: path.name)
def test_gpus_that_cut_a_layer_count_and_copies_or_stages_are_refused(path, inside, tmp_path):
    said = STATED | {"engine": None, "precision": "bf16", "gpu_type": "H100-SXM"}
    copies = ((key, n) for key in COPIES for n in (1, "1", 2, "4", -1, 2.5, "x"))
    for key, value in [*PARALLEL.items(), *copies]:
        new = _changed(path, tmp_path, **({inside: {key: value}} if inside else {key: value}))
        if key in PARALLEL:
            (row,) = _rows(new, **said, node_gb_per_s=450)
            assert row.tensor_parallel == int(value)
            (stated,) = _rows(new, **said, tensor_parallel=1)
            assert stated.tensor_parallel == 1
            with _refused(rf"{path.name}, result 1: .*give node_gb_per_s="):
                _rows(new, **said)
        elif str(value) == "1":
            assert _rows(new, **said)[0].tensor_parallel == 1
        else:
            with _refused(f"field '{key}'"):
                _rows(new, **said)


def test_a_rate_without_limit_is_whatever_stands_for_infinity(tmp_path):
    """And no more run at once than there are; else the number is to be stated."""
    for changes, batch in (
        *(({"request_rate": rate}, 8) for rate in ("inf", "Infinity", float("inf"), None, "INF")),
        ({"max_concurrency": 10_000, "completed": 37}, 37),
    ):
        new = _changed(SERVE, tmp_path, **{"max_concurrency": 8, **changes})
        assert [row.batch for row in _rows(new, gpu_type="B200")] == [batch]
    odd = [float("nan"), 2, 0, -1, "trace", "nan", True, [], {}, float("-inf"), "-inf", 10**400]
    limited = [("request_rate", rate) for rate in odd]
    limited += [("ramp_up_strategy", "linear"), ("ramp_up_strategy", "exponential")]
    for field, value in limited:
        new = _changed(SERVE, tmp_path, max_concurrency=8, **{field: value})
        assert [row.batch for row in _rows(new, gpu_type="B200", batch=8)] == [8]
        with _refused(f"result 1, field '{field}': .*: expected inf .*give batch="):
            _rows(new, gpu_type="B200")
    counted = (
        "max_concurrency",
        "completed",
        "total_input_tokens",
        "total_output_tokens",
        "median_tpot_ms",
    )
    for field, value in product(counted, (float("nan"), float("inf"))):
        with _refused(f"field '{field}': (nan|inf)"):
            _rows(_changed(SERVE, tmp_path, **{field: value}), gpu_type="B200")


@pytest.mark.parametrize("inside", [None, "server_info"])
def test_a_pass_that_makes_several_tokens_is_no_decode_of_one(inside, tmp_path):
    said = {"gpu_type": "B200", "precision": "bf16"}
    for key, drafts in product(
        ("spec_decode_acceptance_rate", "spec_decode_num_drafts", "accept_length", "speculative_algorithm"),
        (2.7, 1, "EAGLE", 0, None, ""),
    ):  # fmt: skip
        fields = {inside: {key: drafts}} if inside else {key: drafts}
        new = _changed(SERVE, tmp_path, **fields)
        assert [row.phase for row in _rows(new, **said, phase="prefill")] == ["prefill"]
        if not drafts:
            assert len(_rows(new, **said)) == 2
            continue
        with _refused(rf"result 1, field '{key}': .*without drafts"):
            _rows(new, **said)


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", sorted(pl.hardware.models().index))
def test_a_model_goes_by_its_name_and_counts_in_the_precision_it_was_published_in(name, tmp_path):
    """Makers in front and purposes behind make no difference; DeepSeek's own weights have 8 bits."""
    said = {"gpu_type": "B200", "phase": "decode", "tensor_parallel": 8, "node_gb_per_s": 900}
    few_bits = name.startswith("DeepSeek")
    spellings = product(
        ("", "a/", "a/b/"),
        ("", "Meta-"),
        ("", "-Instruct", "-chat-hf", "-Base", "-0324", "-Instruct-v0.1"),
    )
    for maker, front, behind in random.Random(name).sample([*spellings], 4):
        new = _changed(
            SERVE, tmp_path, model_id=maker + front + name.lower() + behind, median_tpot_ms=90.0
        )
        (row,) = _rows(new, **said, precision="fp8")
        assert row.model == name
        if not few_bits:
            assert _rows(new, **said)[0].precision == "bf16"
            continue
        with _refused(r"'model_id'.*give precision="):
            _rows(new, **said)
    if few_bits:  # nor in a file that names no model
        with _refused(r"result 1: .*give precision="):
            _rows(LATENCY, **said, model=name, batch=8, tokens=32, output_tokens=128)


@pytest.mark.parametrize("name", ["b.csv", "b.md"])
@pytest.mark.parametrize(
    "text",
    [
        "| model | size | backend | ngl | test | t/s |\n| --- | --- | --- | --- | --- | --- |\n",
        "build_commit,build_number,model_type,n_prompt,avg_ns\n8cf427,5163,llama 8B Q8_0,512,9\n",
        "============ Serving Benchmark Result ============\nSuccessful requests:      64\n",
    ],
)
def test_what_is_printed_and_torn_is_refused_in_one_sentence(text, name, tmp_path):
    (tmp_path / name).write_text(text)
    with _refused(rf"{name}[,:]"):
        pl.hardware.calibrate(ROOF, tmp_path / name)


def test_a_model_is_told_by_its_size_or_all_of_that_size_are_named(tmp_path):
    for name, size in pl.hardware.models()["parameters_published"].items():
        head = "| model | size | params | backend | ngl | test | t/s |\n| - | - | - | - | - | - | - |\n"
        line = f"| some Q4_0 | 1.00 GiB | {size / 1e9:.2f} B | CUDA | 99 | tg128 | 0.10 ± 0.00 |\n"
        (tmp_path / "b.md").write_text(head + line, encoding="utf-8")
        try:
            told = _rows(tmp_path / "b.md", gpu_type="H200-SXM")[0].model
        except pl.errors.InvalidData as error:
            told = str(error)
        assert f"{name} " in f"{told} "
