"""From the fields of a configuration to those of `Transformer`, one function per family of models.

What a file leaves out has the default of its class in transformers.
"""

from collections.abc import Callable
from typing import Any

from pipelab.errors import shown
from pipelab.fields import is_list
from pipelab.hardware.config_json.fields import Config
from pipelab.hardware.layer_sizes import LatentAttention


def _common(c: Config, head_dim: int | None = None, tied: bool = False) -> dict[str, Any]:
    """What all families have; `head_dim` and `tied` as the family has them by default."""
    width, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    if c.get("head_dim", head_dim) is None:
        if width % heads:
            expected = f"expected a divisor of hidden_size = {width}, or a head_dim"
            raise c.error("num_attention_heads", expected)
        head_dim = width // heads
    return {
        "layers": c.whole("num_hidden_layers"),
        "d_model": width,
        "d_ff": c.whole("intermediate_size"),
        "heads": heads,
        "kv_heads": c.whole("num_key_value_heads"),
        "head_dim": c.whole("head_dim", head_dim),
        "vocab": c.whole("vocab_size"),
        "tied_embeddings": c.flag("tie_word_embeddings", tied),
    }


def _biased(c: Config, fields: dict[str, Any]) -> dict[str, Any]:
    """With the biases of queries, keys, values and output, where `attention_bias` is set."""
    if not c.flag("attention_bias"):
        return fields
    extra = fields.get("extra_parameters", 0) + fields["d_model"]
    return fields | {"qkv_bias": True, "extra_parameters": extra}


def _windows(c: Config, default: int | None = None, every: int = 0) -> dict[str, Any]:
    """How far back the layers look: those of `Transformer.full_layers` at everything.

    Parameters
    ----------
    default : int, optional
        Tokens of the window where the file has no `sliding_window`; null is no window.
    every : int
        Unless `layer_types` says otherwise, each so-many-th layer looks back at everything; 0: none.
    """
    layers = c.whole("num_hidden_layers")
    size = c.get("sliding_window") if "sliding_window" in c.values else default
    full = [i for i in range(layers) if every and (i + 1) % every == 0]
    if c.get("layer_types") is not None:
        full = _full_by_type(c)
    elif size is None:
        full = list(range(layers))
    if len(full) == layers:
        return {"window": None}
    return {"window": c.whole("sliding_window", default), "full_layers": tuple(full)}


def _full_by_type(c: Config) -> list[int]:
    """The layers whose entry in `layer_types` is "full_attention"; the others must have a window."""
    layers, kinds = c.whole("num_hidden_layers"), c.get("layer_types")
    if not is_list(kinds) or len(kinds) != layers:
        raise c.error("layer_types", f"expected a list of num_hidden_layers = {layers} kinds")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            expected = (
                f"expected full_attention or sliding_attention in each layer, not {shown(kind)}"
            )
            raise c.error("layer_types", expected)
    return [i for i, kind in enumerate(kinds) if kind == "full_attention"]


def _windows_if_used(c: Config) -> dict[str, Any]:
    """Qwen's: of `use_sliding_window`, and in the layers from `max_window_layers` on."""
    if not c.flag("use_sliding_window"):
        return {"window": None}
    found = _windows(c, 4096)
    if found["window"] is None or c.get("layer_types") is not None:
        return found
    layers, full = c.whole("num_hidden_layers"), c.whole("max_window_layers", least=0)
    return {"window": None} if full >= layers else found | {"full_layers": tuple(range(full))}


def _llama(c: Config) -> dict[str, Any]:
    c = _with(c, num_key_value_heads=c.get("num_attention_heads"))
    fields = _common(c)
    if c.flag("mlp_bias"):
        fields["extra_parameters"] = 2 * fields["d_ff"] + fields["d_model"]
    return _biased(c, fields)


def _with(c: Config, **defaults: Any) -> Config:
    """With a family's defaults for what is absent or null."""
    present = {key: value for key, value in c.values.items() if value is not None}
    return Config(c.path, defaults | present)


def _mistral(c: Config) -> dict[str, Any]:
    return _common(c) | _windows(c, 4096)


def _phi3(c: Config) -> dict[str, Any]:
    return _common(_with(c, num_key_value_heads=c.get("num_attention_heads"))) | _windows(c)


def _gemma(c: Config) -> dict[str, Any]:
    return _biased(c, _common(c, head_dim=256, tied=True))


def _gemma2(c: Config) -> dict[str, Any]:
    """Norms before and after both blocks; every other layer has a window, the first one among them."""
    fields = _common(c, head_dim=256, tied=True) | _windows(c, 4096, every=2)
    return _biased(c, fields | {"extra_parameters": 2 * fields["d_model"]})


def _gemma3(c: Config) -> dict[str, Any]:
    """As Gemma 2, with norms of queries and keys, and five windows to a layer without one."""
    if c.flag("use_bidirectional_attention"):
        reason = "a token looks ahead, too, and it writes none"
        raise c.refused("use_bidirectional_attention", reason)
    older, newer = "sliding_window_pattern", "_sliding_window_pattern"
    windows = _windows(c, 4096, every=c.whole(newer if newer in c.values else older, 6))
    c = _with(c, num_attention_heads=8, num_key_value_heads=4, vocab_size=262_208)
    fields = _common(c, head_dim=256, tied=True) | windows
    norms = 2 * fields["d_model"] + 2 * fields["head_dim"]
    return _biased(c, fields | {"extra_parameters": norms})


def _qwen2(c: Config) -> dict[str, Any]:
    return _common(c) | {"qkv_bias": True} | _windows_if_used(c)


def _qwen3(c: Config, head_dim: int | None = 128) -> dict[str, Any]:
    fields = _common(c, head_dim) | _windows_if_used(c)
    return _biased(c, fields | {"extra_parameters": 2 * fields["head_dim"]})  # norms of both


def _olmo2(c: Config) -> dict[str, Any]:
    fields = _common(_with(c, num_key_value_heads=c.get("num_attention_heads")))
    wide = (fields["heads"] + fields["kv_heads"]) * fields["head_dim"]
    return _biased(c, fields | {"extra_parameters": wide})  # norms of all queries, and of all keys


def _mixtral(c: Config) -> dict[str, Any]:
    return _common(c) | {
        "experts": c.whole("num_local_experts", least=2),
        "experts_per_token": c.whole("num_experts_per_tok"),
        **_windows(c),
    }


def _qwen_experts(c: Config) -> dict[str, Any]:
    """Routed experts of every layer but the first few."""
    if c.whole("decoder_sparse_step", 1) != 1:
        raise c.error("decoder_sparse_step", "expected 1: experts in every layer but the first few")
    dense = c.get("mlp_only_layers", [])
    if not is_list(dense) or list(dense) != list(range(len(dense))):
        raise c.error("mlp_only_layers", "expected the first layers, such as [] or [0, 1]")
    return {
        "experts": c.whole("num_experts", least=2),
        "experts_per_token": c.whole("num_experts_per_tok"),
        "expert_ff": c.whole("moe_intermediate_size"),
        "dense_layers": len(dense),
    }


def _qwen2_moe(c: Config) -> dict[str, Any]:
    fields = _common(c) | _qwen_experts(c)
    if fields["dense_layers"]:  # which have no gate of a shared expert
        raise c.error("mlp_only_layers", "expected []")
    shared, width = c.whole("shared_expert_intermediate_size"), fields["expert_ff"]
    if shared % width:
        expected = f"expected a multiple of moe_intermediate_size = {width}"
        raise c.error("shared_expert_intermediate_size", expected)
    return fields | {
        "shared_experts": shared // width,
        "qkv_bias": c.flag("qkv_bias", True),
        "extra_parameters": fields["d_model"],  # the shared expert's gate
        **_windows_if_used(c),
    }


def _qwen3_moe(c: Config) -> dict[str, Any]:
    return _qwen3(c, head_dim=None) | _qwen_experts(c)


def _deepseek(c: Config, bias: str) -> dict[str, Any]:
    """Latent attention, and experts in all but the first layers; `bias`: how routing is done by default."""
    if c.whole("moe_layer_freq", 1) != 1:
        raise c.error("moe_layer_freq", "expected 1: experts in every layer but the first few")
    heads, value_dim = c.whole("num_attention_heads"), c.whole("v_head_dim")
    rank = None if c.get("q_lora_rank") is None else c.whole("q_lora_rank")
    latent = LatentAttention(rank, c.whole("kv_lora_rank"), c.whole("qk_rope_head_dim"), value_dim)
    own = c.whole("qk_nope_head_dim")
    none = 0 if "n_shared_experts" in c.values else None  # null; the classes' defaults differ
    fields = _common(
        _with(Config(c.path, {**c.values, "head_dim": own}), num_key_value_heads=heads)
    )
    if c.flag("attention_bias"):  # of what is projected down, and of the output
        biases = (rank or 0) + latent.kv_rank + latent.rope_dim + fields["d_model"]
        fields["extra_parameters"] = biases
    return fields | {
        "experts": c.whole("n_routed_experts", least=2),
        "experts_per_token": c.whole("num_experts_per_tok"),
        "shared_experts": c.whole("n_shared_experts", none, least=0),
        "expert_ff": c.whole("moe_intermediate_size"),
        "dense_layers": c.whole("first_k_dense_replace", least=0),
        "router_bias": c.get("topk_method", bias) == "noaux_tc",
        "latent": latent,
    }


FAMILIES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama,
    "granite": _llama,
    "mistral": _mistral,
    "ministral": _mistral,
    "phi3": _phi3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "olmo2": _olmo2,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": lambda c: _deepseek(c, "greedy"),
    "deepseek_v3": lambda c: _deepseek(c, "noaux_tc"),
    "kimi_k2": lambda c: _deepseek(c, "noaux_tc"),
}
