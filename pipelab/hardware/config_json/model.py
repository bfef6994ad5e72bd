"""A Hugging Face `config.json` as a `Transformer`: exactly, or refused by name.

A model is read only if `Transformer` has every one of its parameters and its whole cache; what it
cannot hold (layers with a state, an encoder that reads the prompt) is refused with the reason, not
approximated. Of a model that sees or hears besides, the part that reads and writes text is read, and a
warning says that the rest is left out.
"""

import os
import warnings
from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, InvalidValue, nearest, shown
from pipelab.fields import is_list
from pipelab.hardware.config_json.families import FAMILIES
from pipelab.hardware.config_json.fields import Config
from pipelab.hardware.config_json.quantization import precision_of
from pipelab.hardware.transformer import Transformer
from pipelab.io.whole_files import named, read_json


def model_of_config(path: Path, precision: str | None, kv_precision: str) -> Transformer:
    """The model that a configuration describes.

    Parameters
    ----------
    path : Path
        A `config.json`, or the folder that has one.
    precision : str, optional
        By default that of `quantization_config`, without one 16 bits.

    Raises
    ------
    InvalidData
        The file is not there, is torn or strange, or the model is not supported.
    """
    if os.path.isdir(path):
        path = path / "config.json"
    c = _text_part(_read(path))
    kind = c.get("model_type")
    _refuse_unsupported(c, kind)
    fields = FAMILIES[kind](c)
    if "window" not in fields:
        _refuse_other_attention(c)
    if precision is None:
        precision = precision_of(c)
    try:
        return Transformer(_name(c), **fields, precision=precision, kv_precision=kv_precision)
    except InvalidValue as error:
        field, _, expected = error.problems[0]
        raise c.error(_KEYS.get(field, field), expected) from None


# The field of a configuration that a field of `Transformer` comes from, where that may not fit.
_KEYS = {
    "layers": "num_hidden_layers",
    "kv_heads": "num_key_value_heads",
    "experts_per_token": "num_experts_per_tok",
    "dense_layers": "first_k_dense_replace",
}


def _read(path: Path) -> Config:
    values = read_json(path)
    if not isinstance(values, dict) or not values.get("model_type"):
        expected = 'expected the config.json of a Hugging Face model, an object with "model_type"'
        raise InvalidData(f"{named(path)}: {expected}")
    return Config(path, values)


def _name(c: Config) -> str:
    """The last part of the model's name; without one, the folder's or the file's."""
    own = c.get("_name_or_path")
    stem = c.path.parent.name if c.path.stem == "config" else c.path.stem
    name = own.rstrip("/").rpartition("/")[2] if isinstance(own, str) else ""
    return (name or stem or "config.json")[:100]


# What the text part of a model that sees or hears may leave to the whole.
_SHARED = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings", "_name_or_path")


def _text_part(c: Config) -> Config:
    """Of a model that sees or hears, too, the part for text, if it is one that can be read; warns of the rest."""
    text = c.values.get("text_config")
    if not isinstance(text, dict) or text.get("model_type") not in FAMILIES:
        return c
    kind = shown(c.get("model_type"))
    left_out = "its encoders of images or sound, their weights and their memory, are left out"
    warnings.warn(
        f"{named(c.path)}: of model_type {kind} only text_config is read; {left_out}", stacklevel=4
    )
    shared = {key: c.values[key] for key in _SHARED if key in c.values}
    return Config(c.path, shared | text)


def _refuse_other_attention(c: Config) -> None:
    """Of a family without windows: all layers look back at everything."""
    kinds = c.get("layer_types")
    if kinds is not None and (not is_list(kinds) or set(map(str, kinds)) != {"full_attention"}):
        expected = f"expected full_attention in every layer of a {c.get('model_type')} model"
        raise c.error("layer_types", expected)


_STATE = "its layers keep a state of fixed size instead of, or besides, keys and values"
_TWO = "its feed-forward block has two matrices, where Transformer counts the three of a gated one"
_SEQ2SEQ = "an encoder reads the prompt, and every decoder layer attends to it besides"
_ENCODER = "it is an encoder, which writes no tokens and has no cache"
_REASONS = {
    _STATE: "mamba mamba2 falcon_mamba falcon_h1 jamba zamba zamba2 bamba nemotron_h rwkv rwkv7 "
    "recurrent_gemma granitemoehybrid qwen3_next qwen3_5 qwen3_5_moe kimi_linear minimax lfm2",
    f"positions are learned, and {_TWO}": "gpt2 gpt_neo gpt_bigcode opt openai-gpt biogpt xglm",
    _TWO: "gpt_neox gptj bloom falcon phi starcoder2 mpt codegen nemotron persimmon",
    _SEQ2SEQ: "t5 mt5 umt5 longt5 bart mbart pegasus m2m_100 marian whisper led prophetnet",
    _ENCODER: "bert roberta xlm-roberta deberta deberta-v2 electra albert distilbert modernbert",
    "its layers have one norm, where Transformer counts two": "cohere cohere2 stablelm_alpha",
    "attention is cut into chunks in most of its layers, and is no sliding window": "llama4_text",
    "its experts have biases, and attention has sinks, that Transformer does not count": "gpt_oss",
    "its layers have embeddings of their own, and some share keys and values": "gemma3n_text",
    "an index chooses which keys and values attention reads": "deepseek_v32 glm_moe_dsa",
}  # fmt: skip
_REFUSED = {kind: reason for reason, kinds in _REASONS.items() for kind in kinds.split()}


def _refuse_unsupported(c: Config, kind: Any) -> None:
    what = f"model_type {shown(kind)}"
    if c.get("is_encoder_decoder") is True:
        raise c.refused(what, _SEQ2SEQ)
    if isinstance(kind, str) and kind in _REFUSED:
        raise c.refused(what, _REFUSED[kind])
    if c.get("text_config") is not None or c.get("vision_config") is not None:
        expected = "it has an encoder for images or sound, and no text_config of a supported family"
        raise c.refused(what, expected)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise c.refused(
            what, f"its parameters are not counted here. {nearest(str(kind), FAMILIES)}"
        )
