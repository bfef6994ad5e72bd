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
        norms = 4 if kind in ("gemma2", "gemma3_text") else 2
        yield f"layers.{i}, {norms} norms", (norms, d)
        yield from (_latent if "kv_lora_rank" in c else _attention)(c)
        yield from _experts(c) if _routed(c, i) else _block(d, c["intermediate_size"])


def _attention(c):
    d, kind, heads = c["hidden_size"], c["model_type"], c["num_attention_heads"]
    groups = c.get("num_key_value_heads") or heads
    own = {"gemma": 256, "gemma2": 256, "gemma3_text": 256, "qwen3": 128}
    wide = c.get("head_dim") or own.get(kind, d // heads)
    for name, size in (("q", heads), ("k", groups), ("v", groups)):
        yield f"{name}_proj.weight", (size * wide, d)
        if kind in ("qwen2", "qwen2_moe"):
            yield f"{name}_proj.bias", (size * wide,)
    yield "o_proj.weight", (d, heads * wide)
    if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
        yield "q_norm.weight, k_norm.weight", (2, wide)
    if kind == "olmo2":
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


def _block(d, width):
    yield from ((f"{name}_proj.weight", (width, d)) for name in ("gate", "up", "down"))


def _routed(c, layer):
    experts = any(c.get(n) for n in ("num_local_experts", "num_experts", "n_routed_experts"))
    return experts and layer >= c.get("first_k_dense_replace", 0)


def _experts(c):
    d = c["hidden_size"]
    number = next(c[n] for n in ("num_local_experts", "num_experts", "n_routed_experts") if n in c)
    width = c.get("moe_intermediate_size") or c["intermediate_size"]
    yield "mlp.gate.weight", (number, d)
    for _ in range(number):
        yield from _block(d, width)
    if c.get("topk_method") == "noaux_tc":
        yield "mlp.gate.e_score_correction_bias", (number,)
    if c.get("n_shared_experts"):
        yield from _block(d, width * c["n_shared_experts"])
    if c.get("shared_expert_intermediate_size"):
        yield from _block(d, c["shared_expert_intermediate_size"])
        yield "shared_expert_gate.weight", (1, d)
