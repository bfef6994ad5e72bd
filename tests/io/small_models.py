"""Write a small random Llama for engines: `small_models.py gguf FILE` for llama.cpp, `small_models.py hf FOLDER`."""

import sys

LAYERS, WIDTH, INNER, HEADS, GROUPS = 9, 128, 256, 4, 2


def gguf(path):
    import numpy as np
    from gguf import GGUFWriter

    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a"]
    rng, out = np.random.default_rng(0), GGUFWriter(path, "llama")
    out.add_context_length(2048)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_head_count_kv(GROUPS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_vocab_size(len(words))
    out.add_tokenizer_model("llama")
    out.add_token_list(words)
    out.add_token_scores([-float(i) for i in range(len(words))])
    out.add_token_types([2, 3, 3, *[6] * 256, 1])

    def add(name, *shape):
        values = rng.standard_normal(shape).astype(np.float16) / 50
        out.add_tensor(f"{name}.weight", values if len(shape) > 1 else np.ones(shape, np.float32))

    add("token_embd", len(words), WIDTH)
    add("output_norm", WIDTH)
    add("output", len(words), WIDTH)
    for i in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{name}", WIDTH)
        for name in ("attn_q", "attn_output"):
            add(f"blk.{i}.{name}", WIDTH, WIDTH)
        for name in ("attn_k", "attn_v"):
            add(f"blk.{i}.{name}", WIDTH * GROUPS // HEADS, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{i}.{name}", INNER, WIDTH)
        add(f"blk.{i}.ffn_down", WIDTH, INNER)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def hf(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "vocab_size": 300}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate(["<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends).save_pretrained(folder)


if __name__ == "__main__":
    {"gguf": gguf, "hf": hf}[sys.argv[1]](sys.argv[2])
