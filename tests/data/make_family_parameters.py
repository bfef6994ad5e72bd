"""Make `family_parameters.json` again: small models of every family, counted by transformers (5.24) itself.

Needs `pip install torch transformers`. Every class is made on torch's "meta" device, with fields drawn at random,
and its weights are counted. Buffers count where they are biases of routers.
"""

import json
import random
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

from pipelab.hardware.layer_kinds import model_families

LAYERS = 4
SIZES = {
    "num_hidden_layers": LAYERS, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 4,
    "vocab_size": 5000, "pad_token_id": 0, "num_experts": 16, "num_local_experts": 16, "n_routed_experts": 16,
    "moe_num_experts": 16, "num_experts_per_tok": 2,
}  # fmt: skip
FLAGS = ("attention_bias", "tie_word_embeddings", "use_qk_norm", "lm_head_bias", "qkv_bias", "attention_out_bias",
         "enable_moe_block", "attention_k_eq_v", "mamba_rms_norm")  # fmt: skip
STATES = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
# What a class cannot do without, and what is refused.
OF_FAMILIES = {
    "dots1": {"n_shared_experts": 2}, "ministral": {"head_dim": 128}, "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64, "moe_topk": [4] * LAYERS}, "ernie4_5_moe": {"moe_layer_end_index": 3},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "granitemoehybrid": {"layer_types": STATES, "mamba_n_heads": 48, "mamba_d_head": 64},
    "falcon_h1": {"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64},
    "gemma4_text": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "num_global_key_value_heads": 2,
                    "top_k_experts": 2, "moe_intermediate_size": 256},
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "mlp"], "intermediate_size": 2048,
                   "tie_word_embeddings": False},
    "kimi_linear": {"first_k_dense_replace": 1, "tie_word_embeddings": False, "linear_attn_config": {
        "full_attn_layers": [3], "kda_layers": [1, 2, 4], "num_heads": 8, "head_dim": 64,
        "short_conv_kernel_size": 4}},
    "deepseek_v4": {"compress_ratios": [0, 4, 128, 4], "num_hash_layers": 1},
}  # fmt: skip


def drawn(family, rng):
    """Fields of a small model of this family."""
    defaults = CONFIG_MAPPING[family]().to_dict()
    plain = {key: value for key, value in defaults.items() if type(value) in (int, bool)}
    fields = plain | {key: value for key, value in SIZES.items() if key in defaults}
    fields |= {key: rng.random() < 0.5 for key in FLAGS if key in defaults}
    fields |= (
        {"first_k_dense_replace": rng.randint(0, 2)} if "first_k_dense_replace" in defaults else {}
    )
    fields = {"tie_word_embeddings": False, **fields, "model_type": family}
    return fields | OF_FAMILIES.get(family, {})


def windows(config):
    """The window of each layer, if all of them look back at everything or have one."""
    kinds = getattr(config, "layer_types", None) or []
    of_kinds = {
        "full_attention": None,
        "sliding_attention": getattr(config, "sliding_window", None),
    }
    return [of_kinds[kind] for kind in kinds] if {*kinds} <= {*of_kinds} else []


def parameters(fields, config):
    """Weights of the model of these fields."""
    with torch.device("meta"):
        alone = type(config) in AutoModelForCausalLM._model_mapping
        model = (AutoModelForCausalLM if alone else AutoModel).from_config(config)
    biases = [b for name, b in model.named_buffers() if name.endswith("bias")]
    head = (
        0
        if alone or fields["tie_word_embeddings"]
        else fields["vocab_size"] * fields["hidden_size"]
    )
    return head + sum(tensor.numel() for tensor in (*model.parameters(), *biases))


if __name__ == "__main__":
    lines = []
    for family in sorted(
        {*model_families()} - {"mimo_v2_flash"}
    ):  # its class does not read the hub's fields
        for trial in range(2):
            fields = {}
            try:
                fields = drawn(family, random.Random(f"{family} {trial}"))
                config = CONFIG_MAPPING[family].from_dict(dict(fields))
                lines.append(json.dumps([fields, parameters(fields, config), windows(config)]))
            except (KeyError, ValueError, TypeError, AssertionError, AttributeError) as error:
                print(f"{family}: left out: {type(error).__name__} {str(error)[:80]}")
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    Path(__file__).with_name("family_parameters.json").write_text(text, encoding="utf-8")
