"""Every weight matrix and vector of a published configuration, as the classes of transformers make them.

Another way to a model's parameters than `pipelab.hardware`: it shares no code, and goes tensor by
tensor with the names of modeling_NAME.py.
"""

from math import prod


def parameters(c):
    """How many numbers the checkpoint of a `config.json` has."""
    return sum(prod(shape) for _, shape in tensors(c))


def tensors(c):
    d, vocab, kind = c["hidden_size"], c["vocab_size"], c["model_type"]
    yield "model.embed_tokens.weight", (vocab, d)
    yield "model.norm.weight", (d,)
    if not c.get("tie_word_embeddings", kind.startswith("gemma")):
        yield "lm_head.weight", (vocab, d)
    for i in range(c["num_hidden_layers"]):
        yield from _NEWER[kind](c, i) if kind in _NEWER else _layer(c, i)
    if kind == "deepseek_v4":
        yield "hc_head.fn, base, scale", (c["hc_mult"] * (c["hc_mult"] * d + 1) + 1,)


def _layer(c, i):
    d, kind = c["hidden_size"], c["model_type"]
    norms = 4 if kind in ("gemma2", "gemma3_text") else 2
    yield f"layers.{i}, {norms} norms", (norms, d)
    yield from (_latent if "kv_lora_rank" in c else _attention)(c)
    yield from _experts(c) if _routed(c, i) else _block(d, c["intermediate_size"])


def _heads(c, heads, groups, width, value=None, gated=1):
    """Matrices of attention with these heads; without a value, keys are the values."""
    d = c["hidden_size"]
    yield "self_attn.q_proj.weight", (gated * heads * width, d)
    yield "self_attn.k_proj.weight", (groups * width, d)
    yield "self_attn.v_proj.weight", (groups * (value or 0), d)
    yield "self_attn.o_proj.weight", (d, heads * (value or width))


def _gpt_oss(c, i):
    d, f, experts, heads = (
        c[n]
        for n in ("hidden_size", "intermediate_size", "num_local_experts", "num_attention_heads")
    )
    groups, width = c["num_key_value_heads"], c["head_dim"]
    yield from _heads(c, heads, groups, width, width)
    yield "q, k, v, o biases; sinks; two norms", ((heads + 2 * groups) * width + d + heads + 2 * d,)
    yield "mlp.router.weight, bias", (experts, d + 1)
    yield "mlp.experts.gate_up_proj, bias", (experts, d + 1, 2 * f)
    yield "mlp.experts.down_proj, bias", (experts, f + 1, d)


def _llama4(c, i):
    d, width, step = c["hidden_size"], c["head_dim"], c["interleave_moe_layer_step"]
    yield from _heads(c, c["num_attention_heads"], c["num_key_value_heads"], width, width)
    yield "two norms", (2, d)
    if (i + 1) % step:
        yield from _block(d, c["intermediate_size_mlp"])
    else:
        yield (
            "feed_forward.experts.gate_up_proj",
            (c["num_local_experts"], d, 2 * c["intermediate_size"]),
        )
        yield "feed_forward.experts.down_proj", (c["num_local_experts"], c["intermediate_size"], d)
        yield "feed_forward.router.weight", (c["num_local_experts"], d)
        yield from _block(d, c["intermediate_size"])  # the shared expert


def _gemma4(c, i):
    d, experts, f = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"]
    full = c["layer_types"][i] == "full_attention"
    width = c["global_head_dim"] if full else c["head_dim"]
    groups = c["num_global_key_value_heads"] if full else c["num_key_value_heads"]
    yield from _heads(c, c["num_attention_heads"], groups, width, None if full else width)
    yield "q_norm, k_norm", (2, width)
    yield "seven norms, router.scale", (8, d)
    yield "router.proj.weight", (experts, d)
    yield "router.per_expert_scale", (experts,)
    yield "experts.gate_up_proj and down_proj", (experts, 3, f, d)
    yield from _block(d, c["intermediate_size"])


def _indexed(c, i):
    d, kinds = c["hidden_size"], c.get("indexer_types")
    yield "two norms", (2, d)
    yield from _latent(c)
    if kinds is None or kinds[i] == "full":
        heads, width = c["index_n_heads"], c["index_head_dim"]
        yield "indexer.wq_b", (heads * width, c["q_lora_rank"])
        yield "indexer.wk, weights_proj", (width + heads, d)
        yield "indexer.k_norm weight, bias", (2, width)
    yield from _experts(c) if _routed(c, i) else _block(d, c["intermediate_size"])


def _mimo_v2(c, i):
    d, swa = c["hidden_size"], "swa_" * c["hybrid_layer_pattern"][i]
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
    yield from _heads(c, *(c[swa + name] for name in names))
    yield "two norms; sinks", (2 * d + (c["swa_num_attention_heads"] if swa else 0),)
    yield from _experts(c) if c["moe_layer_freq"][i] else _block(d, c["intermediate_size"])


def _deepseek_v4(c, i):
    d, rank, wide, heads = (
        c[n] for n in ("hidden_size", "q_lora_rank", "head_dim", "num_attention_heads")
    )
    ratio, mix = c["compress_ratios"][i], c["hc_mult"]
    yield "wq_a, q_norm", (rank, d + 1)
    yield "wq_b", (heads * wide, rank)
    yield "wkv, kv_norm", (wide, d + 1)
    yield "wo_a", (c["o_groups"], c["o_lora_rank"], heads * wide // c["o_groups"])
    yield "wo_b", (d, c["o_groups"] * c["o_lora_rank"])
    yield "sinks", (heads,)
    twice = 2 if ratio == 4 else 1  # windows of which each overlaps the one before
    for width in [wide] * (ratio > 0) + [c["index_head_dim"]] * (ratio == 4):
        yield "compressor.wkv, wgate, ape", (twice * width, 2 * d + ratio)
        yield "compressor.norm", (width,)
    if ratio == 4:
        yield "indexer.wq_b", (c["index_n_heads"] * c["index_head_dim"], rank)
        yield "indexer.weights_proj", (c["index_n_heads"], d)
    yield "two hyper-connections", (2, (2 + mix) * mix * (mix * d + 1) + 3)
    yield "two norms", (2, d)
    hashed = i < c["num_hash_layers"]
    yield from _experts({**c, "topk_method": "none" if hashed else "noaux_tc"})


def _delta(c, i):
    d, width = c["hidden_size"], c["head_dim"]
    if c["layer_types"][i] == "full_attention":
        yield from _heads(c, c["num_attention_heads"], c["num_key_value_heads"], width, width, 2)
        yield "q_norm, k_norm", (2, width)
    else:
        heads = c["linear_num_value_heads"]
        keys, values = (
            c["linear_num_key_heads"] * c["linear_key_head_dim"],
            heads * c["linear_value_head_dim"],
        )
        yield "in_proj_qkv, z, b, a", (2 * keys + 2 * values + 2 * heads, d)
        yield "out_proj", (d, values)
        yield "conv1d", (2 * keys + values, c["linear_conv_kernel_dim"])
        yield "A_log, dt_bias, norm", (2 * heads + c["linear_value_head_dim"],)
    yield "two norms", (2, d)
    yield from _experts(c)


def _nemotron(c, i):
    d, mark = c["hidden_size"], c["hybrid_override_pattern"][i]
    yield "norm", (d,)
    if mark == "M":
        heads, groups = c["mamba_num_heads"], c["n_groups"] * c["ssm_state_size"]
        inner = heads * c["mamba_head_dim"]
        yield "in_proj", (2 * inner + 2 * groups + heads, d)
        yield "conv1d weight, bias", (inner + 2 * groups, c["conv_kernel"] + 1)
        yield "A_log, D, dt_bias, norm", (3 * heads + inner,)
        yield "out_proj", (d, inner)
    elif mark == "*":
        yield from _heads(
            c, c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["head_dim"]
        )
    else:
        experts = c["n_routed_experts"]
        yield "experts.up_proj, down_proj", (experts, 2, c["moe_intermediate_size"], d)
        yield "shared_experts.up_proj, down_proj", (2, c["moe_shared_expert_intermediate_size"], d)
        yield "gate weight, bias", (experts, d + 1)


_NEWER = {
    "gpt_oss": _gpt_oss, "llama4_text": _llama4, "gemma4_text": _gemma4, "glm_moe_dsa": _indexed,
    "mimo_v2_flash": _mimo_v2, "deepseek_v4": _deepseek_v4, "qwen3_5_moe_text": _delta, "nemotron_h": _nemotron,
}  # fmt: skip


def _attention(c):
    d, kind, heads = c["hidden_size"], c["model_type"], c["num_attention_heads"]
    groups = c.get("num_key_value_heads") or heads
    own = {"gemma": 256, "gemma2": 256, "gemma3_text": 256, "qwen3": 128}
    wide = c.get("head_dim") or own.get(kind, d // heads)
    for name, size in (("q", heads), ("k", groups), ("v", groups)):
        yield f"{name}_proj.weight", (size * wide, d)
        if kind in ("qwen2", "qwen2_moe") or (kind == "glm4_moe" and c["attention_bias"]):
            yield f"{name}_proj.bias", (size * wide,)
    yield "o_proj.weight", (d, heads * wide)
    if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
        yield "q_norm.weight, k_norm.weight", (2, wide)
    if kind in ("olmo2", "minimax_m2"):
        yield "q_norm.weight", (heads * wide,)
        yield "k_norm.weight", (groups * wide,)


def _latent(c):
    d, heads, low = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, value = (c[n] for n in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    rank = c.get("q_lora_rank")
    if rank:
        yield "q_a_proj.weight", (rank, d)
        yield "q_a_layernorm.weight", (rank,)
    yield "q_b_proj.weight" if rank else "q_proj.weight", (heads * (nope + rope), rank or d)
    yield "kv_a_proj_with_mqa.weight", (low + rope, d)
    yield "kv_a_layernorm.weight", (low,)
    yield "kv_b_proj.weight", (heads * (nope + value), low)
    yield "o_proj.weight", (d, heads * value)


def _block(d, width, module="mlp"):
    yield from ((f"{module}.{name}_proj.weight", (width, d)) for name in ("gate", "up"))
    yield f"{module}.down_proj.weight", (d, width)


def _routed(c, layer):
    experts = any(c.get(n) for n in ("num_local_experts", "num_experts", "n_routed_experts"))
    kinds = c.get("mlp_layer_types") or ["dense"] * c.get("first_k_dense_replace", 0)
    return experts and kinds[layer : layer + 1] != ["dense"]


def _experts(c):
    d = c["hidden_size"]
    number = next(c[n] for n in ("num_local_experts", "num_experts", "n_routed_experts") if n in c)
    width = c.get("moe_intermediate_size") or c["intermediate_size"]
    yield "mlp.gate.weight", (number, d)
    for _ in range(number):
        yield from _block(d, width, "mlp.experts")
    if (
        c.get("topk_method") == "noaux_tc"
        or c.get("use_routing_bias")
        or c["model_type"] == "glm4_moe"
    ):
        yield "mlp.gate.e_score_correction_bias", (number,)
    if c.get("n_shared_experts"):
        yield from _block(d, width * c["n_shared_experts"], "mlp.shared_experts")
    if c.get("shared_expert_intermediate_size"):
        yield from _block(d, c["shared_expert_intermediate_size"])
        yield "shared_expert_gate.weight", (1, d)
