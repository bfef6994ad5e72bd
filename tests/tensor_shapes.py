"""Every weight matrix and vector of the configurations that `test_quantisation.py` has, as transformers makes them.

Another way to a model's parameters than `pipelab.hardware`: it shares no code, and goes tensor by
tensor, with the names of modeling_NAME.py.
"""


def tensors(c):
    d, vocab, kind = c["hidden_size"], c["vocab_size"], c["model_type"]
    yield "model.embed_tokens.weight", (vocab, d)
    yield "model.norm.weight", (d,)
    if not c.get("tie_word_embeddings", kind.startswith("gemma")):
        yield "lm_head.weight", (vocab, d)
    for i in range(c["num_hidden_layers"]):
        yield f"layers.{i}, two norms", (2, d)
        yield from (_latent if "kv_lora_rank" in c else _attention)(c)
        dense = i < c.get("first_k_dense_replace", c["num_hidden_layers"])
        yield from _block(d, c["intermediate_size"]) if dense else _experts(c)


def _attention(c):
    d, kind, heads = c["hidden_size"], c["model_type"], c["num_attention_heads"]
    groups = c.get("num_key_value_heads") or heads
    wide = c.get("head_dim") or {"gemma": 256, "qwen3": 128}.get(kind, d // heads)
    for name, size in (("q", heads), ("k", groups), ("v", groups)):
        yield f"{name}_proj.weight", (size * wide, d)
        if kind == "qwen2":
            yield f"{name}_proj.bias", (size * wide,)
    yield "o_proj.weight", (d, heads * wide)
    if kind == "qwen3":
        yield "q_norm.weight, k_norm.weight", (2, wide)


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


def _experts(c):
    d, width = c["hidden_size"], c["moe_intermediate_size"]
    yield "mlp.gate.weight", (c["n_routed_experts"], d)
    for _ in range(c["n_routed_experts"]):
        yield from _block(d, width, "mlp.experts")
    yield from _block(d, width * c["n_shared_experts"], "mlp.shared_experts")
