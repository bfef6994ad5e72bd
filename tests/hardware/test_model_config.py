"""A Hugging Face config.json becomes exactly the model that was published, or is refused by name."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tensor_shapes

import pipelab as pl
from pipelab.hardware.transformer import LatentAttention

# Fields of published config.json files that say what a model is, and published totals, each with
# the document that has it to the last digit ("total_from"); of Granite none was found.
PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "data" / "model_configs.json").read_text(encoding="utf-8")
)
BUNDLED = list(pl.hardware.models().index)


def _config(name, **changes):
    """A published configuration with some fields changed; Ellipsis takes one away."""
    fields = PUBLISHED[name]["config.json"] | changes
    return {key: value for key, value in fields.items() if value is not ...}


def _written(folder, fields):
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_total(name, tmp_path):
    path = _written(tmp_path / name, _config(name))
    model = pl.load_model(path)
    assert model.parameters() == PUBLISHED[name]["parameters_published"]
    assert model.name == name
    assert pl.load_model(path.parent) == pl.load_model(str(path)) == model


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_total_is_the_sum_over_all_tensors(name):
    """By arithmetic that shares no code with the package, and with a document beside it."""
    published = PUBLISHED[name]
    assert tensor_shapes.parameters(published["config.json"]) == published["parameters_published"]
    assert ("counted only" in published["total_from"]) == (name == "Granite-3.1-8B")


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_model_is_what_its_configuration_says(name, tmp_path):
    model = pl.load_model(_written(tmp_path / name, _config(name)), precision="bf16")
    assert model == pl.load_model(name)


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    # DeepSeek-AI, Insights into DeepSeek-V3, ISCA 2025, table 1: per token, at 16 bits
    [("DeepSeek-V3", 70.272), ("Qwen2.5-72B", 327.680), ("Llama-3.1-405B", 516.096)],
)
def test_keys_and_values_are_as_published(name, kilobytes, tmp_path):
    model = pl.load_model(_written(tmp_path, _config(name)))
    assert model.kv_bytes * model.layers == 1000 * kilobytes


def test_dimensions_that_have_other_names(tmp_path):
    def load(name, **changes):
        return pl.load_model(_written(tmp_path / name, _config(name, **changes)))

    v3, lite, qwen = (load(n) for n in ("DeepSeek-V3", "DeepSeek-V2-Lite", "Qwen1.5-MoE-A2.7B"))
    assert v3.latent == LatentAttention(1536, 512, 64, 128)
    assert (v3.precision, v3.router_bias, v3.dense_layers, v3.shared_experts) == ("fp8", True, 3, 1)
    assert (lite.latent.query_rank, lite.router_bias, lite.experts_per_token) == (None, False, 6)
    assert (qwen.shared_experts, qwen.expert_ff, qwen.qkv_bias) == (4, 1408, True)
    assert (load("Mistral-7B-v0.1").window, load("Phi-3-mini-4k").window) == (4096, 2047)
    assert load("Mistral-7B-v0.1", sliding_window=None).window is None
    assert load("Mistral-7B-v0.1", sliding_window=...).window == 4096  # the class's default
    # Qwen states a window and does not use it
    assert load("Qwen2.5-72B").window is None
    assert load("Qwen2.5-72B", use_sliding_window=True, max_window_layers=80).window is None
    assert load("Qwen2.5-72B", use_sliding_window=True, max_window_layers=0).window == 131072
    assert load("Qwen3-8B", layer_types=["full_attention"] * 36).window is None
    qwen = load("Qwen2.5-72B", use_sliding_window=True, max_window_layers=70, sliding_window=...)
    assert (qwen.window, qwen.full_layers) == (4096, tuple(range(70)))
    assert load("Mistral-Nemo-12B").head_dim == 128  # not 5120 / 32
    assert load("Llama-2-7B").kv_heads == 32  # none stated: as many as heads
    assert load("Gemma-2B").tied_embeddings  # none stated: as the class has it
    llama, biased = load("Llama-3-8B"), load("Llama-3-8B", attention_bias=True, mlp_bias=True)
    more = 48 * 128 + 4096 + 2 * 14336 + 4096  # queries, keys, values; output; feed-forward block
    assert biased.parameters() - llama.parameters() == 32 * more
    bias = load("DeepSeek-V3", attention_bias=True).parameters() - v3.parameters()
    assert bias == 61 * (1536 + 512 + 64 + 7168)
    assert load("Llama-3-8B", _name_or_path="meta-llama/Meta-Llama-3-8B").name == "Meta-Llama-3-8B"


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
W8 = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
SCHEMES = {
    "awq": (AWQ, "int4"),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": False}, "int4"),
    "gptq, 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "int8"),
    "fp8": ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}, "fp8"),
    "fp8 of Qwen": (
        {
            "quant_method": "fp8",
            "modules_to_not_convert": ["model.layers.0.mlp.gate", "model.layers.1.input_layernorm"],
        },
        "fp8",
    ),
    "llm-compressor, fp8": (
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": W8}, "ignore": ["lm_head"]}, "fp8",
    ),
    "llm-compressor, int4": (
        {"quant_method": "compressed-tensors",
         "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}}, "int4",
    ),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
    "beside an encoder for images": (
        {"quant_method": "fp8", "ignore": ["lm_head", "re:vision_tower.*", "multi_modal_projector.linear_1"]}, "fp8",
    ),
    "none": (None, "bf16"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMES)
def test_the_precision_is_that_of_the_checkpoint(name, tmp_path):
    scheme, expected = SCHEMES[name]
    path = _written(tmp_path, _config("Llama-3-8B", quantization_config=scheme))
    assert pl.load_model(path).precision == expected
    assert pl.load_model(path, precision="int8").precision == "int8"


OTHER_SCHEMES = {
    "three bits": (AWQ | {"bits": 3}, "bits: 3: expected 4 or 8 bits"),
    "small groups": (AWQ | {"group_size": 32}, "group_size: 32: expected 128 weights"),
    "a head in few bits": (AWQ | {"lm_head": True, "quant_method": "gptq"}, "lm_head: True"),
    "attention at 16 bits": (
        {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]},
        "modules_to_not_convert: 'model.layers.0.self_attn.q_proj': expected every matrix",
    ),
    "attention at 16 bits, in vLLM's words": (
        {"quant_method": "fp8", "ignored_layers": ["lm_head", "model.layers.0.self_attn.q_proj"]},
        "ignored_layers: 'model.layers.0.self_attn.q_proj': expected every matrix",
    ),
    "a scheme of its own": ({"quant_method": "mxfp4"}, "quant_method: 'mxfp4': expected fp8"),
    "two precisions": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"a": W8, "b": {"weights": W8["weights"] | {"type": "int"}}},
        },
        "config_groups: ['fp8', 'int8']: expected one precision",
    ),
    "no object": ("fp8", "'fp8': expected an object with quant_method"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_SCHEMES)
def test_another_scheme_is_refused_with_what_to_do(name, tmp_path):
    scheme, message = OTHER_SCHEMES[name]
    path = _written(tmp_path, _config("Llama-3-8B", quantization_config=scheme))
    with pytest.raises(pl.errors.InvalidData) as caught:
        pl.load_model(path)
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)
    assert pl.load_model(path, precision="int4").precision == "int4"


REFUSED = {
    "a state": ({"model_type": "mamba"}, "model_type 'mamba' is not supported: its layers keep a state"),
    "learned positions": ({"model_type": "gpt2"}, "positions are learned, and its feed-forward block has two matrices"),
    "two matrices": ({"model_type": "starcoder2"}, "has two matrices"),
    "an encoder and a decoder": ({"model_type": "t5"}, "an encoder reads the prompt"),
    "one of a new name": ({"model_type": "t7", "is_encoder_decoder": True}, "an encoder reads the prompt"),
    "an encoder": ({"model_type": "bert"}, "writes no tokens"),
    "chunks": ({"model_type": "llama4_text"}, "attention is cut into chunks"),
    "sinks": ({"model_type": "gpt_oss"}, "its experts have biases"),
    "a token that looks ahead": (
        {"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention is not supp",
    ),
    "an unknown one": ({"model_type": "qwen4"}, "its parameters are not counted here. did you mean 'qwen"),
    "images": ({"model_type": "llava", "text_config": {}}, "an encoder for images or sound"),
    "no name of a family": (
        {"model_type": "llava", "text_config": {"model_type": {}}}, "no text_config of a supported family",
    ),
    "images and no known text": (
        {"model_type": "llava", "text_config": {"model_type": "opt"}}, "no text_config of a supported family",
    ),
    "some layers' kind": (
        {"layer_types": ["full_attention", "sliding_attention"]}, "expected a list of num_hidden_layers = 32 kinds",
    ),
    "layers of another kind": (
        {"layer_types": ["full_attention"] * 31 + ["linear_attention"]}, "in each layer, not 'linear_attention'",
    ),
    "windows without a size": (
        {"layer_types": ["sliding_attention"] * 32, "sliding_window": "4k"}, "field 'sliding_window': '4k': expected",
    ),
    "windows in a family without them": (
        {"model_type": "llama", "layer_types": ["sliding_attention"] * 32}, "every layer of a llama model",
    ),
    "no layer that looks back at all": (
        {"model_type": "gemma3_text", "sliding_window_pattern": 0}, "field 'sliding_window_pattern': 0: expected",
    ),
    "a width that heads do not divide": (
        {"num_attention_heads": 48, "hidden_size": 4100}, "a divisor of hidden_size = 4100",
    ),
    "heads in unequal groups": ({"num_key_value_heads": 5}, "field 'num_key_value_heads': 5: expected a divisor"),
    "no key/value heads": ({"num_key_value_heads": ...}, "field 'num_key_value_heads': is missing"),
    "text for a number": ({"hidden_size": "4096"}, "field 'hidden_size': '4096': expected a whole number"),
    "text for a flag": (
        {"tie_word_embeddings": "false"}, "field 'tie_word_embeddings': 'false': expected true or false",
    ),
    "no layers": ({"num_hidden_layers": 0}, "field 'num_hidden_layers': 0"),
    "too many layers": ({"num_hidden_layers": 10**6}, "field 'num_hidden_layers': 1000000: expected at most 100,000"),
    "8 bits without a scheme": (
        {"torch_dtype": "float8_e4m3fn"}, "field 'torch_dtype': 'float8_e4m3fn': expected one of float16, bfloat16",
    ),
    "no type": ({"model_type": ...}, 'an object with "model_type"'),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_transformer_cannot_hold_is_refused_by_name(name, tmp_path):
    changes, message = REFUSED[name]
    with pytest.raises(pl.errors.InvalidData) as caught:
        pl.load_model(_written(tmp_path, _config("Mistral-7B-v0.1", **changes)))
    assert message in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


EXPERTS = {
    "every other layer": ("Qwen3-30B-A3B", {"decoder_sparse_step": 2}, "'decoder_sparse_step': 2"),
    "some layers": ("Qwen3-30B-A3B", {"mlp_only_layers": [4]}, "'mlp_only_layers': [4]"),
    "a shared one of an odd width": (
        "Qwen1.5-MoE-A2.7B",
        {"shared_expert_intermediate_size": 5633},
        "expected a multiple of moe_intermediate_size = 1408",
    ),
    "more than there are": ("DeepSeek-V3", {"num_experts_per_tok": 300}, "at most experts = 256"),
    "a later beginning": ("DeepSeek-V3", {"moe_layer_freq": 2}, "'moe_layer_freq': 2"),
}


@pytest.mark.parametrize("case", EXPERTS)
def test_experts_elsewhere_are_refused(case, tmp_path):
    name, changes, message = EXPERTS[case]
    with pytest.raises(pl.errors.InvalidData) as caught:
        pl.load_model(_written(tmp_path, _config(name, **changes)))
    assert message in str(caught.value)


def test_first_layers_without_experts_are_dense(tmp_path):
    model = pl.load_model(_written(tmp_path, _config("Qwen3-30B-A3B", mlp_only_layers=[0, 1])))
    assert model.dense_layers == 2


ODD = [
    None, "", "x", "4096", -1, 0, 1, 7, 2.5, float("inf"), float("nan"), True, [], {}, [[]], [None], 10**30, "\x00",
    {"quant_method": None}, {"quant_method": "compressed-tensors", "config_groups": {"a": []}}, "é" * 5000,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "DeepSeek-V3", "Mistral-7B-v0.1", "Qwen2.5-72B"])
def test_a_strange_file_is_read_or_refused_in_one_sentence(name, tmp_path):
    """Every field in turn absent, or with an odd value; and the file torn at every place."""
    path = tmp_path / "config.json"

    def outcome(text):
        path.write_text(text, encoding="utf-8")
        try:
            return pl.load_model(path)
        except pl.errors.InvalidData as error:
            message = str(error)
        assert str(path) in message
        assert len(message) < 1000
        assert "\x00" not in message
        return None

    fields = _config(name)
    whole = json.dumps(fields)
    assert outcome(whole) is not None
    for key in [*fields, "head_dim", "layer_types", "quantization_config", "_name_or_path"]:
        outcome(json.dumps({k: v for k, v in fields.items() if k != key}))
        for odd in ODD:
            outcome(json.dumps(fields | {key: odd}))
    for end in range(0, len(whole), 3):
        assert outcome(whole[:end]) is None
    for text in ("[]", "1", "null", "[" * 100_000, '{"weight_map": {}}', "9" * 5000):
        assert outcome(text) is None


def test_names_and_paths_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _written(tmp_path / "Llama-3-8B", _config("Mistral-7B-v0.1"))
    _written(tmp_path / "mine", _config("Mistral-7B-v0.1"))
    assert pl.load_model("Llama-3-8B").vocab == 128256  # a name of the table comes first
    assert pl.load_model("mine").vocab == pl.load_model(Path("Llama-3-8B")).vocab == 32000
    with pytest.raises(pl.errors.InvalidData, match=r"other\.json: there is no such file"):
        pl.load_model("other.json")
    with pytest.raises(pl.errors.UnknownName, match=r"or give the path of a config\.json"):
        pl.load_model("Llama-4-8B")
    with pytest.raises(pl.errors.UnknownName, match="fp7"):
        pl.load_model("mine", precision="fp7")
    (tmp_path / "empty").mkdir()
    with pytest.raises(pl.errors.InvalidData, match=r"config\.json: there is no such file"):
        pl.load_model("empty")


@pytest.mark.parametrize(
    ("name", "precision", "gb"),
    # Sizes of published checkpoints: AWQ with groups of 128, and llm-compressor's fp8.
    [
        ("Llama-3-8B", "int4", 5.73), ("Llama-3-70B", "int4", 39.77), ("Mixtral-8x7B", "int4", 24.65),
        ("Llama-3-8B", "fp8", 9.08), ("Llama-3-70B", "fp8", 72.66), ("Llama-3-8B", "bf16", 16.06),
    ],
)  # fmt: skip
def test_quantised_weights_are_as_large_as_the_files(name, precision, gb):
    model = pl.load_model(name, precision=precision)
    assert model.weight_gb(range(model.layers)) == pytest.approx(gb, abs=0.005)


@pytest.mark.parametrize("precision", ["bf16", "fp8", "int4", "fp32"])
@pytest.mark.parametrize("tied", [False, True])
def test_layers_weigh_together_what_the_whole_weighs(precision, tied):
    """By spans, by factors of single layers, and by their number, where embedding and head are 16 bits."""
    for name in ("DeepSeek-V3", "Llama-3-8B"):
        model = pl.load_model(name, precision=precision)
        model = dataclasses.replace(model, layers=7, tied_embeddings=tied)
        apart = sum(model.weight_gb(range(i, i + 1)) for i in range(7))
        twice = tied * model.vocab * model.d_model * model.kept_bytes / 1e9
        assert model.weight_gb(range(7)) == pytest.approx(apart - twice, rel=1e-12)
        for start, stop in ((0, 7), (0, 3), (2, 7), (2, 5)):
            weight = model.spans.weight[model.spans.kind[start, stop - start - 1]]
            expected = model.weight_gb(range(start, stop))
            assert weight * model.layer_weight_gb == pytest.approx(expected, rel=1e-12)
        head = model.vocab * model.d_model * (4 if precision == "fp32" else 2) / 1e9
        assert model.weight_gb(range(6, 7)) - model.layer_weight_gb == pytest.approx(head, rel=1e-4)


# Layers that look back at everything, as the modelling code of transformers has it.
WINDOWS = {
    "Gemma 2: every other one": ("Gemma-2-9B", {}, 4096, range(1, 42, 2)),
    "Gemma 3: every sixth": ("Gemma-3-1B", {}, 512, (5, 11, 17, 23)),
    "Gemma 3, its newer field": (
        "Gemma-3-1B", {"_sliding_window_pattern": 4, "sliding_window_pattern": ...}, 512, range(3, 26, 4),
    ),
    "by layer_types": (
        "Gemma-3-1B", {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 24}, 512, (0, 1),
    ),
    "Ministral, by layer_types": (
        "Mistral-7B-v0.1",
        {"model_type": "ministral", "layer_types": ["full_attention", *["sliding_attention"] * 3] * 8},
        4096, range(0, 32, 4),
    ),
    "all by null": ("Gemma-2-9B", {"sliding_window": None}, None, ()),
}  # fmt: skip


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_of_some_layers(case, tmp_path):
    name, changes, window, full = WINDOWS[case]
    model = pl.load_model(_written(tmp_path, _config(name, **changes)))
    assert (model.window, model.full_layers) == (window, tuple(full))


def test_keys_and_values_with_windows_in_some_layers(tmp_path):
    """By hand, for Gemma-3-1B: 22 layers keep 512 tokens, 4 keep all, of 2 · 256 numbers of 2 bytes each."""
    model = pl.load_model(_written(tmp_path, _config("Gemma-3-1B")))
    load = pl.Workload(32_768, 3, "decode")
    problem = pl.Problem(pl.Cluster.from_counts({"L4": 1}, 24, 10), model, load, pl.Roofline())
    gpu = problem.cluster.gpus[0]

    def cache(layers):
        return problem.costs.memory_parts(problem, gpu, layers)["KV cache"]

    assert cache(range(26)) == 3 * (22 * 512 + 4 * 32_768) * 1024 / 1e9
    assert cache(range(6)) == 3 * (5 * 512 + 32_768) * 1024 / 1e9
    assert cache(range(6, 8)) == 3 * 2 * 512 * 1024 / 1e9
    # What the fifth layer reads less than the sixth, and computes less: 4 heads · 4 · 256 per pair.
    facts, engine = problem.costs.gpus["L4"], problem.costs.constants
    seconds = [problem.costs.pass_seconds(model, load, gpu, range(i, i + 1)) for i in (4, 5)]
    pairs = 3 * (32_768 - 512)
    read = (
        pairs
        * 1024
        / (facts.memory_bandwidth_gb_per_s * 1e9 * engine.memory_efficiency * engine.kv_efficiency)
    )
    flops = pairs * 4 * 4 * 256 / (facts.fp16_tflop_per_s * 1e12 * facts.compute_efficiency)
    assert seconds[1] - seconds[0] == pytest.approx(read + (1 - engine.decode_overlap) * flops)
    # In prefill a window of 512 tokens has 32,768 · 512 − 512²/2 pairs, and half of 32,768² without.
    gemma = dataclasses.replace(model, window=512, full_layers=(5,))
    prompt = pl.Workload(32_768, 1)
    seconds = [problem.costs.pass_seconds(gemma, prompt, gpu, range(i, i + 1)) for i in (4, 5)]
    more = 32_768**2 / 2 - (32_768 * 512 - 512**2 / 2)
    flops = (
        more
        * 4
        * 4
        * 256
        / (facts.fp16_tflop_per_s * 1e12 * facts.compute_efficiency * engine.prefill_efficiency)
    )
    assert seconds[1] - seconds[0] == pytest.approx(flops, rel=1e-6)


def test_the_text_part_of_a_model_that_sees(tmp_path):
    """google/gemma-3-4b-it's file leaves out what its class has by default; llama.cpp counts 3,880,263,168."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    whole = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {},
        "torch_dtype": "float16",
    }
    path = _written(tmp_path, whole)
    with pytest.warns(
        UserWarning, match="of model_type 'gemma3' only text_config is read"
    ) as caught:
        model = pl.load_model(path)
    assert caught[0].filename == __file__
    assert model.parameters() == 3_880_263_168
    assert (model.precision, model.full_layers) == ("fp16", (5, 11, 17, 23, 29))


def test_layers_without_a_window_are_there():
    llama = pl.load_model("Llama-3-8B")
    given = dataclasses.replace(llama, window=4096, full_layers=[3, 1, 3])
    assert given.full_layers == (1, 3)
    for changes, message in (
        ({"full_layers": (1,)}, "expected none in a model without a window"),
        ({"window": 8, "full_layers": (32,)}, "full_layers = 32: expected numbers from 0 to 31"),
        ({"window": 8, "full_layers": (-1,)}, "full_layers"),
    ):
        with pytest.raises(pl.errors.InvalidValue, match=message):
            dataclasses.replace(llama, **changes)


@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("name", ["Llama-3-8B", "DeepSeek-V3"])
def test_a_window_that_no_layer_has_changes_nothing(name, phase):
    plain = dataclasses.replace(pl.load_model(name), layers=6)
    without = dataclasses.replace(plain, window=64, full_layers=range(6))
    half = dataclasses.replace(plain, window=64, full_layers=(1, 3, 5))
    cluster = pl.Cluster((pl.GPU("H200-SXM", 141, None, "node", 450),) * 2, np.full((2, 2), 450.0))
    plan = pl.Placement.of([(6, (0, 1))])
    found = []
    for model in (plain, without, half):
        load = pl.Workload(4096, 4, phase, 128)
        problem = pl.Problem(
            cluster,
            model,
            load,
            pl.Roofline(),
            max_gpus_per_stage=2,
            same_type_stages=False,
        )
        report = pl.evaluate(problem, plan)
        prompts = dataclasses.replace(problem, workload=pl.Workload(4096, 4))
        stage = pl.evaluate(prompts, plan).stages[0]
        training = tuple(problem.costs.training_cost(prompts, stage))
        parts = problem.costs.memory_parts(problem, cluster.gpus[0], range(6))
        found.append((report.throughput, tuple(parts.values()), training))
    assert found[0] == found[1]
    assert found[0][0] < found[2][0]
    assert sum(found[0][1]) > sum(found[2][1])
    # The input gradient shrinks with attention, the weight gradient only as the forward is faster.
    assert found[0][2][1] > found[2][2][1]


def test_a_window_keeps_memory_and_time_from_growing():
    mistral = dataclasses.replace(pl.load_model("Llama-3-8B"), window=4096)
    problem = pl.Problem(
        pl.Cluster.from_counts({"L4": 1}, 24, 10), mistral, pl.Workload(4096, 4, "decode"), pl.Roofline(),
    )  # fmt: skip
    longer = dataclasses.replace(problem, workload=pl.Workload(1_000_000, 4, "decode"))
    gpu = problem.cluster.gpus[0]
    memory = [p.costs.memory_parts(p, gpu, range(32)) for p in (problem, longer)]
    assert memory[0] == memory[1]
    assert memory[0]["KV cache"] == 4 * 4096 * 131072 / 1e9
    seconds = [p.costs.pass_seconds(p.model, p.workload, gpu, range(32)) for p in (problem, longer)]
    assert seconds[0] == seconds[1]


def test_latent_attention_has_a_head_dimension_of_its_own(tmp_path):
    """Its heads need not divide the width, and a `head_dim` beside it is not read."""
    fields = _config("DeepSeek-V3", hidden_size=7200, head_dim=...)
    assert fields["hidden_size"] % fields["num_attention_heads"]
    model = pl.load_model(_written(tmp_path / "odd", fields))
    assert model.head_dim == fields["qk_nope_head_dim"]
    beside = pl.load_model(_written(tmp_path / "beside", fields | {"head_dim": 7}))
    assert beside.head_dim == model.head_dim
