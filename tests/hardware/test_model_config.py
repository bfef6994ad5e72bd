"""A Hugging Face config.json becomes exactly the model that was published, or is refused by name."""

import dataclasses
import json
from pathlib import Path

import pytest

import pipelab as pl
from spoiling import read_or_refused

# Fields of published config.json files that say what a model is, and published totals, each with
# the document that has it to the last digit ("total_from"); of Granite none was found.
DATA = Path(__file__).parents[1] / "data"
PUBLISHED = json.loads((DATA / "model_configs.json").read_text(encoding="utf-8"))
# Small models of every family, and what transformers counts in them (`make_family_parameters.py`).
COUNTED = json.loads((DATA / "family_parameters.json").read_text(encoding="utf-8"))
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
def test_a_model_is_what_was_published(name, tmp_path):
    """Its parameters are a document's total; a bundled model is its configuration."""
    path, published = _written(tmp_path / name, _config(name)), PUBLISHED[name]
    model, total = pl.load_model(path), published["parameters_published"]
    assert total in (None, model.parameters())
    assert model.name == name
    assert pl.load_model(path.parent) == pl.load_model(str(path)) == model
    if gigabytes := published.get("gigabytes_published"):
        assert model.weight_gb(range(model.layers)) == pytest.approx(gigabytes, rel=1e-5)
    if name in BUNDLED:
        read, bundled = pl.load_model(path, precision="bf16"), pl.load_model(name)
        assert read.kind_of_layer == bundled.kind_of_layer
        for one, other in zip(read.layer_kinds, bundled.layer_kinds, strict=True):
            assert (one.parameters, one.routed) == (other.parameters, other.routed)
            assert one.lookbacks == other.lookbacks
            assert read.layer_bytes(one) == bundled.layer_bytes(other)


@pytest.mark.parametrize("family", sorted({fields["model_type"] for fields, *_ in COUNTED}))
def test_models_of_a_family_have_the_parameters_that_transformers_counts(family, tmp_path):
    """And so do several of their layers: embedding, head and every kind of layer are where they belong."""
    for fields, parameters, windows in COUNTED:
        if fields["model_type"] == family:
            model = pl.load_model(_written(tmp_path, fields))
            assert model.parameters() == parameters
            assert windows in (
                [],
                [kind.lookbacks[0].window for kind in _kinds(model) if kind.lookbacks],
            )
            first, rest = range(1), range(1, model.layers)
            shared = model.tied_embeddings * model.vocab * model.d_model
            assert model.parameters(first) + model.parameters(rest) == parameters + shared
            weights = model.weight_gb(first) + model.weight_gb(rest)
            assert weights == pytest.approx(2e-9 * (parameters + shared))


def _kinds(model):
    return [model.layer_kinds[number] for number in model.kind_of_layer]


def _windows(model):
    """The window, and the layers that look back at everything though others have it."""
    windows = [kind.lookbacks[0].window for kind in _kinds(model)]
    full = tuple(i for i, window in enumerate(windows) if window is None)
    return max(filter(None, windows), default=None), full if len(full) < model.layers else ()


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

    v3 = load("DeepSeek-V3")
    assert v3.precision == "fp8"
    assert load("DeepSeek-V2-Lite").experts_per_token == 6
    assert _windows(load("Mistral-7B-v0.1")) == (4096, ())
    assert _windows(load("Phi-3-mini-4k")) == (2047, ())
    assert _windows(load("Mistral-7B-v0.1", sliding_window=None)) == (None, ())
    default = load("Mistral-7B-v0.1", sliding_window=...)
    assert _windows(default) == (4096, ())  # the class's
    # Qwen states a window and does not use it
    assert _windows(load("Qwen2.5-72B")) == (None, ())
    for layers, windows in ((80, (None, ())), (0, (131072, ())), (70, (131072, tuple(range(70))))):
        used = load("Qwen2.5-72B", use_sliding_window=True, max_window_layers=layers)
        assert _windows(used) == windows
    assert _windows(load("Qwen3-8B", layer_types=["full_attention"] * 36)) == (None, ())
    llama, biased = load("Llama-3-8B"), load("Llama-3-8B", attention_bias=True, mlp_bias=True)
    more = 48 * 128 + 4096 + 2 * 14336 + 4096  # queries, keys, values; output; feed-forward block
    assert biased.parameters() - llama.parameters() == 32 * more
    bias = load("DeepSeek-V3", attention_bias=True).parameters() - v3.parameters()
    assert bias == 61 * (1536 + 512 + 64 + 7168)
    assert load("Llama-3-8B", _name_or_path="meta-llama/Meta-Llama-3-8B").name == "Meta-Llama-3-8B"
    some = load("Qwen3-30B-A3B", mlp_only_layers=[0, 7], decoder_sparse_step=2)
    routed = [i % 2 == 1 and i != 7 for i in range(48)]
    assert [bool(kind.routed) for kind in _kinds(some)] == routed
    # heads of latent attention need not divide the width, and a `head_dim` beside theirs is not read
    assert load("DeepSeek-V3", hidden_size=7200, head_dim=7).head_dim == v3.head_dim == 128


# Fields of Mistral-7B, or of another model where one is named.
REFUSED = {
    "a state": ({"model_type": "mamba"}, "model_type 'mamba' is not supported: its parameters are not counted here"),
    "an encoder": ({"is_encoder_decoder": True}, "with is_encoder_decoder, it has an encoder"),
    "a token that looks ahead": (
        {"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention is not supp",
    ),
    "an unknown one": ({"model_type": "qwen4"}, "its parameters are not counted here. did you mean 'qwen"),
    "images": ({"vision_config": {"depth": 24}}, "with vision_config, it has an encoder"),
    "some layers' kind": (
        {"layer_types": ["full_attention", "sliding_attention"]}, "expected a list of num_hidden_layers = 32 kinds",
    ),
    "layers of another kind": (
        {"layer_types": ["full_attention"] * 31 + ["linear_attention"]}, "or sliding_attention, not 'linear_attention'",
    ),
    "windows in a family without them": (
        {"model_type": "llama", "layer_types": ["sliding_attention"] * 32}, "expected full_attention, not",
    ),
    "heads in unequal groups": ({"num_key_value_heads": 5}, "field 'num_key_value_heads': 5: expected a divisor"),
    "no key/value heads": ({"num_key_value_heads": ...}, "field 'num_key_value_heads': is missing"),
    "text for a number": ({"hidden_size": "4096"}, "field 'hidden_size': '4096': expected a whole number"),
    "text for a flag": (
        {"tie_word_embeddings": "false"}, "field 'tie_word_embeddings': 'false': expected true or false",
    ),
    "8 bits without a scheme": (
        {"torch_dtype": "float8_e4m3fn"}, "field 'torch_dtype': 'float8_e4m3fn': expected one of float16, bfloat16",
    ),
    "no type": ({"model_type": ...}, 'an object with "model_type"'),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_transformer_cannot_hold_is_refused_by_name(case, tmp_path):
    changes, message, *other = REFUSED[case]
    with pytest.raises(pl.errors.InvalidData) as caught:
        pl.load_model(_written(tmp_path, _config(*other or ["Mistral-7B-v0.1"], **changes)))
    assert message in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


ODD = [
    None, "x", "4096", -1, 0, 7, 2.5, float("nan"), True, [], {}, [[]], [None], 10**30, "\x00",
    {"quant_method": None}, {"quant_method": "compressed-tensors", "config_groups": {"a": []}}, "é" * 5000,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["DeepSeek-V3", pytest.param("Qwen3-30B-A3B", marks=pytest.mark.nightly)]
)
def test_a_strange_file_is_read_or_refused_in_one_sentence(name, tmp_path):
    """Every field in turn absent, or with an odd value; and a file that is torn or no object."""
    path, fields = tmp_path / "config.json", _config(name)
    whole = json.dumps(fields)
    texts = [whole[: len(whole) // 2], "[]", "null", "[" * 100_000, "9" * 5000]
    for key in [*fields, "head_dim", "layer_types", "quantization_config", "_name_or_path"]:
        texts += [json.dumps(fields | {key: odd}) for odd in ODD]
        texts.append(json.dumps({k: v for k, v in fields.items() if k != key}))
    for text in texts:
        path.write_text(text, encoding="utf-8")
        read_or_refused(lambda: pl.load_model(path), str(path))


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
    assert _windows(model) == (window, tuple(full))


def test_the_text_part_of_a_model_that_sees(tmp_path):
    """google/gemma-3-4b-it's file leaves out what its class has by default; llama.cpp counts 3,880,263,168."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    path = _written(tmp_path, whole | {"torch_dtype": "float16"})
    told = "of model_type 'gemma3' only text_config is read"
    with pytest.warns(UserWarning, match=told) as caught:
        model = pl.load_model(path)
    assert caught[0].filename == __file__
    assert model.parameters() == 3_880_263_168
    assert (model.precision, _windows(model)) == ("fp16", (1024, (5, 11, 17, 23, 29)))


def test_a_window_makes_gradients_quicker_and_one_that_no_layer_has_changes_nothing():
    plain = dataclasses.replace(pl.load_model("DeepSeek-V3"), layers=6)
    found = []
    for model in (
        plain,
        dataclasses.replace(plain, window=64, full_layers=range(6)),
        dataclasses.replace(plain, window=64, full_layers=(1, 3, 5)),
    ):
        cluster = pl.Cluster.from_counts({"H200-SXM": 1}, 141, 10)
        problem = pl.Problem(cluster, model, pl.Workload(4096, 4), pl.Roofline())
        (stage,) = pl.evaluate(problem, pl.Placement.of([(6, (0,))])).stages
        found.append(tuple(problem.costs.training_cost(problem, stage)))
    assert found[0] == found[1]
    # The input gradient shrinks with attention, the weight gradient only as the forward is faster.
    assert found[0][1] > found[2][1]


def test_a_model_in_no_table_is_a_small_file(tmp_path):
    """The fields of `Transformer`, in TOML or JSON; what a refusal needs is what it names."""
    path = tmp_path / "mine.toml"
    unknown = _written(tmp_path / "new", _config("Llama-3-8B", model_type="qwen9"))
    with pytest.raises(pl.errors.InvalidData, match="give a TOML file with layers") as told:
        pl.load_model(unknown)
    for model in (pl.load_model("DeepSeek-V3"), pl.load_model("Mixtral-8x7B", precision="int4")):
        fields = {k: v for k, v in dataclasses.asdict(model).items() if v not in (None, (), "")}
        rest = {key: value for key, value in fields.items() if not isinstance(value, dict)}
        needed = [name for name in rest if name in str(told.value)]
        assert len(needed) == 7
        lines = [f"{key} = {json.dumps(value)}" for key, value in rest.items()]
        latent = fields.get("latent", {}).items()
        lines += ["[latent]", *(f"{key} = {value}" for key, value in latent)] if latent else []
        path.write_text("\n".join(lines))
        assert pl.load_model(path) == model
        (tmp_path / "mine.json").write_text(json.dumps(fields))
        assert pl.load_model(tmp_path / "mine.json") == model
        for name in needed:
            path.write_text("\n".join(line for line in lines if not line.startswith(f"{name} =")))
            with pytest.raises(pl.errors.InvalidData, match=rf"mine\.toml, field '{name}'"):
                pl.load_model(path)
    assert pl.load_model(tmp_path / "mine.json", precision="fp8").precision == "fp8"


def test_layers_for_drafts_weigh_on_the_last_stage_alone():
    """DeepSeek-V3's fp8 checkpoint has one: 11.5 billion weights and a little of a projection."""
    model = pl.load_model("DeepSeek-V3", precision="fp8")
    more = dataclasses.replace(model, draft_layers=1)
    assert more.weight_gb(range(61)) - model.weight_gb(range(61)) == pytest.approx(11.5, rel=0.01)
    assert more.weight_gb(range(60)) == model.weight_gb(range(60))
    assert more.parameters() == model.parameters()
    for layers in (range(50, 61), range(3)):
        start, size = layers.start, len(layers) - 1
        spans = more.spans
        weight = spans.weight[spans.kind[start, size]] * more.layer_weight_gb
        assert weight == pytest.approx(more.weight_gb(layers))
