"""Whatever a checkpoint says of its quantisation, wherever: read as large as its tensors, or refused by name."""

import json
import random
from math import prod

import pytest
import tensor_shapes
from test_model_config import ODD, PUBLISHED, _config, _written

import pipelab as pl
from spoiling import read_or_refused

MODELS = ("Llama-3-8B", "Gemma-2B", "Qwen3-8B", "DeepSeek-V2-Lite", "Qwen2.5-72B")
BITS = {"fp8": 8, "int8": 8, "int4": 4, "nvfp4": 4, "mxfp4": 4, "bf16": 16}
ATTENTION = ("q_proj", "q_a", "q_b", "k_proj", "v_proj", "o_proj", "kv_")
SHAPES = {name: list(tensor_shapes.tensors(PUBLISHED[name]["config.json"])) for name in MODELS}


def stored_bytes(model, bits, group, scale_bits, head, plain):
    """Bytes of all tensors: matrices of the layers, and the head, have `bits` and a scale per `group`.

    `group` is a number of weights, None for a row, or a block's two sides; `plain` names matrices of 16 bits.
    """
    total = 0
    for name, shape in SHAPES[model]:
        matrix = name.endswith("_proj.weight") or name.startswith("kv_a_proj")
        in_few_bits = matrix and not any(part in name for part in plain)
        if in_few_bits or (name == "lm_head.weight" and head):
            rows, columns = shape
            height, width = group if isinstance(group, list) else (1, group or columns)
            scales = -(-rows // height) * -(-columns // width)
            total += prod(shape) * bits / 8 + scales * scale_bits / 8
        else:
            total += 2 * prod(shape)
    return total


# Lists of modules that are left out: what they name, which matrices of the layers these are, and whether the head is
# among them.
LISTS = [
    (None, (), None),
    ([], (), False),
    (["lm_head"], (), True),
    (["re:.*lm_head", "re:.*mlp.gate$"], (), True),
    (["*lm_head*", "model.layers.0.mlp.gate", "model.norm", "re:visual.*", "mtp*"], (), True),
    (["lm_head", "model.layers.*.self_attn"], ATTENTION, True),
    (["lm_head", "re:.*self_attn.*"], ATTENTION, True),
    (["lm_head", "re:.*gate"], ("gate_proj",), True),
    (["lm_head", "*.mlp.gate*"], ("mlp.gate_proj",), True),
    (["lm_head", "re:.*(visual|down_proj)$"], ("down_proj",), True),
    (["re:.*"], ("proj",), True),
]
KV = [
    None, "FP8", "fp8_e4m3", "INT8", "NVFP4", {"num_bits": 8, "type": "float"}, {"num_bits": 4, "type": "float"}, 3,
]  # fmt: skip
KV_READ = {"None": "bf16", "FP8": "fp8", "fp8_e4m3": "fp8", "INT8": "int8", str(KV[5]): "fp8"}
UNKNOWN = [
    "quark", "hqq", "eetq", "aqlm", "torchao", "auto-round", "bitnet", "vptq", "spqr", "higgs", "quanto",
    "finegrained_fp8", "fp_quant", "sinq", "gptq_marlin_24", "exl2", "experts_int8", "tpu_int8", "sparseml", None,
    7, "",
]  # fmt: skip


def _of_lists(rng, key, head_if_none):
    names, plain, head = rng.choice(rng.choice([LISTS, LISTS[2:5]]))
    fields = {} if names is None else {key: names}
    return fields, plain, head_if_none if head is None else not head


def _fp8(rng):
    fields, plain, head = _of_lists(rng, "modules_to_not_convert", False)
    block = rng.choice([None, [128, 128], [64, 64], [1, 32]])
    if rng.random() < 0.2:  # OpenAI's
        return fields | {"quant_method": "mxfp4"}, (4, 32, 8, head, plain)
    fields |= {"quant_method": rng.choice(["fp8", "FP8"]), "weight_block_size": block}
    return fields, (8, block, 32, head, plain)


def _bitsandbytes(rng):
    fields, plain, head = _of_lists(rng, "llm_int8_skip_modules", False)
    four = rng.random() < 0.3
    fields |= {"quant_method": "bitsandbytes", "load_in_8bit": not four, "load_in_4bit": four}
    twice = four and rng.random() < 0.5
    fields |= {"bnb_4bit_use_double_quant": True, "bnb_4bit_quant_type": "nf4"} if twice else {}
    scale = 8 + 32 / 256 if twice else 32
    return fields, (4, 64, scale, head, plain) if four else (8, None, 32, head, plain)


def _grouped(rng):
    bits, group = rng.choice([3, 4, 4, 8]), rng.choice([32, 64, 128, 128, -1])
    head, form = rng.random() < 0.2, rng.random()
    stored = (bits, None if group == -1 else group, 16 + bits, head, ())
    fields = {"bits": bits, "group_size": group, "lm_head": head}
    if form < 0.2 and not head:  # AutoAWQ's own names
        fields = {"w_bit": bits, "q_group_size": group, "version": "GEMM", "zero_point": True}
    elif form < 0.4:  # AutoGPTQ's file
        fields |= {"desc_act": False, "sym": True}
    else:
        fields["quant_method"] = rng.choice(["awq", "gptq", "auto-round", "intel/auto-round"])
        fields["data_type"] = "int"
    if 0.4 <= form < 0.5:
        fields, stored = fields | {"dynamic": {"+:.*down_proj": {"bits": 2}}}, None
    elif 0.5 <= form < 0.6:
        fields, stored = fields | {"modules_in_block_to_quantize": [["mlp.up_proj"]]}, None
    return fields, stored


FORMATS = {
    "float-quantized": [("float", 8)], "int-quantized": [("int", 8)], "naive-quantized": [("int", 8), ("float", 8)],
    "pack-quantized": [("int", 4), ("int", 8)], "nvfp4-pack-quantized": [("float", 4)],
    "mxfp4-pack-quantized": [("float", 4)], "marlin-24": [("int", 4)], "dense": [("int", 8)],
}  # fmt: skip


def _compressed(rng):
    fields, plain, head = _of_lists(rng, "ignore", True)
    form = rng.choice([*FORMATS, "pack-quantized", "float-quantized"])
    kind, bits = rng.choice(FORMATS[form])
    group = rng.choice([None, None, 32, 128, 128])
    symmetric = rng.random() < 0.5 or form != "pack-quantized"
    weights = {"num_bits": bits, "type": kind, "group_size": group, "symmetric": symmetric}
    strategy = {"strategy": "group" if group else "channel"}
    one = {"weights": weights | strategy, "targets": ["Linear"]}
    scale = 8 if form.endswith("fp4-pack-quantized") else 16 + bits * (not symmetric)
    stored = (bits, group, scale, head, plain)
    odd = rng.random()
    fields |= {"quant_method": "compressed-tensors", "format": form}
    fields["config_groups"] = {"group_0": one}
    if odd < 0.2:
        one["targets"] = ["re:.*mlp.*"]
        stored = (*stored[:3], False, (*plain, *ATTENTION))
    elif odd < 0.25:
        other = one | {"weights": weights | {"num_bits": 2}}
        fields["config_groups"]["group_1"], stored = other, None
    elif odd < 0.3:
        fields["sparsity_config"], stored = {"format": "sparse-24-bitmask"}, None
    return fields, None if form in ("marlin-24", "dense") else stored


ALGORITHMS = {  # TensorRT-LLM's names: bits, weights with one scale, bits of it
    "FP8": (8, [10**9] * 2, 32), "fp8_pb_wo": (8, [128, 128], 32), "FP8_BLOCK_SCALES": (8, [128, 128], 32),
    "FP8_PER_CHANNEL_PER_TOKEN": (8, None, 32), "W8A16": (8, None, 32), "W4A16_AWQ": (4, 128, 16),
    "W4A8_AWQ": (4, 128, 16),
    "NVFP4": (4, 16, 8), "MXFP8": (8, 32, 8), "W4A16_MXFP4": (4, 32, 8), "W4A16_NVFP4": (4, 16, 8), "W4A16": None,
    "MIXED_PRECISION": None, "NO_QUANT": None, "W6A6": None, 8: None,
}  # fmt: skip


def _modelopt(rng):
    fields, plain, head = _of_lists(rng, rng.choice(["exclude_modules", "ignore"]), True)
    name = rng.choice([*ALGORITHMS, "FP8", "FP8"])
    stored = ALGORITHMS[name] and (*ALGORITHMS[name], head, plain)
    fields |= {"quant_algo": name, "producer": {"name": "modelopt"}}
    if isinstance(ALGORITHMS[name], tuple) and ALGORITHMS[name][1] in (16, 32, 128):
        fields["group_size"] = ALGORITHMS[name][1]
    odd = rng.random()
    if odd < 0.1 and name != "MIXED_PRECISION":
        other = {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}}
        fields["quantized_layers"], stored = other, None
    elif odd < 0.2:
        fields["moe_quant_algo"], stored = "NVFP4", None
    elif odd < 0.5:
        fields["quant_method"] = rng.choice(["modelopt", "modelopt_fp4", "fp8"])
    return fields, stored


def _unknown(rng):
    method = rng.choice(UNKNOWN)
    fields = {"quant_method": method, "bits": 4, "group_size": 128}
    return fields | ({} if method else {"kind": 1}), None


def _keys_and_values_alone(rng):
    nothing = (16, 10**9, 0, False, ())
    if rng.random() < 0.3:
        method = {"quant_method": "compressed-tensors", "format": "dense", "ignore": []}
        return method | {"config_groups": {}}, nothing
    odd = rng.choice([{}, {}, {"bits": 4}, {"quantized_layers": {"model.layers.0": "FP8"}}])
    fields = {"quant_algo": None, "producer": {"name": "modelopt"}}
    return fields | odd, None if odd else nothing


KINDS = (_fp8, _bitsandbytes, _grouped, _compressed, _modelopt, _unknown, _keys_and_values_alone)
PLACES = (
    "quantization_config", "compression_config", "quantization", "hf_quant_config.json", "quantize_config.json",
    "quant_config.json", "quantization_config.json", "quanto_qmap.json", "text_config", "X_hf_quant_config.json",
)  # fmt: skip
NESTED = (None, None, "quantization", "quantization_config")


def _placed(folder, model, place, fields):
    """Write a checkpoint's configuration, and its quantisation there; return what to load, and what an error names."""
    config = _config(model, quantization_config=..., torch_dtype="bfloat16")
    if place == "text_config":
        vision = {"model_type": "sees", "vision_config": {}, "quantization_config": fields}
        _written(folder, vision | {"text_config": config | {"quantization_config": None}})
    elif not place.endswith(".json"):
        _written(folder, config | {place: fields})
    else:
        path = _written(folder, config)
        (folder / place).write_text(json.dumps(fields))
        if place.startswith("X_"):
            return path.rename(folder / "X_config.json"), place
    return folder, "config.json" if "." not in place else place


def _by_day_and_night(first, last):
    """The first seeds in every run, all of them at night."""
    return [range(first), pytest.param(range(last), marks=pytest.mark.nightly)]


@pytest.mark.filterwarnings("ignore:.*only text_config is read")
@pytest.mark.parametrize("seeds", _by_day_and_night(400, 3000), ids=str)
def test_a_checkpoint_is_as_large_as_its_tensors_or_refused(seeds, tmp_path):
    """Four bits in groups of 128 are read with and without zeros, as llm-compressor and AWQ write them."""
    read, groups, methods = [], set(), set()
    for seed in seeds:
        rng = random.Random(seed)
        model, place, kind = rng.choice(MODELS), rng.choice(PLACES), rng.choice(KINDS)
        fields, stored = kind(rng)
        kv = rng.choice([*KV, None, None, None])
        if kv is not None:
            of_others = fields.get("quant_method") != "compressed-tensors"
            fields[rng.choice(["kv_cache_scheme", *["kv_cache_quant_algo"] * of_others])] = kv
        nested = rng.choice(NESTED)
        content = {nested: fields} if nested else fields
        file, named = _placed(tmp_path / str(seed), model, place, content)
        try:
            found = pl.load_model(file)
        except pl.errors.InvalidData as error:
            said = str(error)
            assert named in said, seed
            assert "precision=" in said, seed
            assert stored is None or stored[0] < 16 or "kv_precision=" in said, (seed, fields)
            continue
        assert stored is not None, (seed, fields)
        gb = found.weight_gb(range(found.layers))
        assert gb == pytest.approx(stored_bytes(model, *stored) / 1e9, rel=2e-5), (seed, fields)
        of_keys = KV_READ[str(kv)]
        assert found.kv_precision == of_keys, (seed, fields)
        most = (
            {stored[0], 16} if stored[4] else {stored[0]}
        )  # matrices left out may be most of them
        assert BITS[found.precision] in most, (seed, fields)
        read.append((kind, found.precision, found.kv_precision, place))
        groups.add(str(stored[:3]))
        methods.add(fields.get("quant_method"))
    kinds, precisions, kv_precisions, places = map(set, zip(*read, strict=True))
    assert kinds == {*KINDS} - {_unknown}
    assert precisions == {*BITS}
    assert kv_precisions == {"fp8", "int8", "bf16"}
    assert places == {*PLACES}
    assert groups >= {"(4, 128, 16)", "(4, 128, 20)", "(4, 64, 32)", "(4, 64, 8.125)"}
    assert methods >= {"awq", "auto-round", "intel/auto-round"}


def test_two_places_must_agree(tmp_path):
    fp8 = {"quant_method": "fp8", "kv_cache_scheme": "FP8"}
    path = _written(tmp_path, _config("Llama-3-8B", quantization_config=fp8))
    beside = tmp_path / "hf_quant_config.json"
    for option, fields in (
        ("precision", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
        ("kv_precision", {"quant_algo": None, "kv_cache_quant_algo": "INT8"}),
    ):
        beside.write_text(json.dumps(fields))
        told = rf"hf_quant_config.json: \['fp8', 'int8'\].*give {option}="
        with pytest.raises(pl.errors.InvalidData, match=told):
            pl.load_model(path)
    beside.write_text(json.dumps({"quant_algo": None, "kv_cache_quant_algo": "FP8"}))
    assert pl.load_model(path).precision == "fp8"
    assert pl.load_model(path, kv_precision="bf16").kv_precision == "bf16"
    text = {**_config("Llama-3-8B"), "quantization_config": {"quant_method": "awq"}}
    _written(tmp_path, {"model_type": "sees", "text_config": text, "quantization_config": fp8})
    with (
        pytest.warns(UserWarning, match="only text_config"),
        pytest.raises(pl.errors.InvalidData, match="the same as in text_config"),
    ):
        pl.load_model(path)


@pytest.mark.parametrize("name", [place for place in PLACES if place.endswith(".json")])
def test_a_strange_file_beside_is_named(name, tmp_path):
    path = _written(tmp_path, _config("Llama-3-8B"))
    if name.startswith("X_"):
        path = path.rename(tmp_path / "X_config.json")
    for text in ("[1", "[]", "3", '"fp8"', "null", "{}", '{"quantization": null}', "\x00"):
        (tmp_path / name).write_text(text)
        with pytest.raises(pl.errors.InvalidData, match=name.replace(".", r"\.")):
            pl.load_model(path)
    assert pl.load_model(path, precision="int4", kv_precision="fp8").precision == "int4"


@pytest.mark.parametrize("seeds", _by_day_and_night(150, 1500), ids=str)
def test_odd_values_are_read_or_refused_in_one_sentence(seeds, tmp_path):
    for seed in seeds:
        rng = random.Random(seed)
        fields, _ = rng.choice(KINDS)(rng)
        inner = fields.get("config_groups", {}).get("group_0", {})
        where = rng.choice([one for one in (fields, inner, inner.get("weights")) if one])
        where[rng.choice([*where, "ignore", "kv_cache_scheme", "\x00" * 300])] = rng.choice(ODD)
        path = _written(tmp_path, _config("Llama-3-8B", quantization_config=fields))
        read_or_refused(lambda: pl.load_model(path), str(path))  # noqa: B023
