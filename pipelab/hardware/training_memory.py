"""What training keeps in memory: state of every parameter, activations of every microbatch in flight.

Bytes of activations per token of one layer, all of 2 bytes but masks of 1, for width d, H·h query
and K·h key/value numbers and a feed-forward block of width f:

    inputs of two norms, of the attention's and of the block's matrices     8·d
    queries, keys, values; the attention's output                           2·(2·H·h + 2·K·h)
    block: with a gate, both products, their activation, and what comes out  2·4·f
           without one, the product before and after its activation          2·2·f
    dropout, where there is any: two masks                                   2·d
    scores, where attention is not fused: softmax, its dropout and mask     5·H·s

For a model of GPT's kind (H·h = K·h = d, f = 4·d, no gate, dropout) that is Korthikanti et al.'s
s·b·d·(34 + 5·H·s/d). With a gate, its activation is kept besides both products.

References
----------
V. Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022.
"""

from typing import Literal

from pipelab.errors import InvalidValue
from pipelab.hardware.transformer import Transformer

Recompute = Literal["none", "selective", "full"]
RECOMPUTE = ("none", "selective", "full")

# Per parameter, besides its gradient: the weight in bf16; master weight and both moments of Adam in
# fp32. A step reads the gradient, reads and writes three numbers in fp32, and writes the weight.
WEIGHT_BYTES, OPTIMIZER_BYTES = 2, 3 * 4
UPDATE_BYTES = 2 * 3 * 4 + 2


def activation_bytes(
    model: Transformer,
    tokens: float,
    *,
    sequence: int,
    recompute: Recompute = "none",
    fused_attention: bool = True,
    gate: bool = True,
    dropout: bool = False,
    degree: int = 1,
    sequence_parallel: bool = False,
) -> float:
    """Return the bytes that one layer keeps of a microbatch, on each of `degree` GPUs that cut it.

    Parameters
    ----------
    model : Transformer
        Whose ordinary layer is meant; of experts those that a token visits.
    tokens : float
        Of the microbatch: sequences times `sequence`.
    sequence : int
        Tokens of one sequence.
    recompute : {"none", "selective", "full"}
        "selective" computes attention's scores a second time, which fused attention does anyway;
        "full" the whole layer, of which only the input is kept.
    fused_attention : bool
        Whether attention keeps no scores (FlashAttention).
    gate : bool
        Whether the feed-forward block has three matrices.
    dropout : bool
        Whether masks are kept.
    degree : int
        GPUs that cut the layer.
    sequence_parallel : bool
        Whether they cut what lies between the matrices, too.

    Returns
    -------
    float
        In bytes, of one microbatch in one layer.

    Raises
    ------
    InvalidValue
        There is no such recomputation.

    Examples
    --------
    >>> from pipelab.hardware.training_memory import activation_bytes
    >>> gpt = Transformer("GPT-3", 96, 12288, 49152, 96, 96, 128, 51200)
    >>> old = dict(fused_attention=False, gate=False, dropout=True)
    >>> activation_bytes(gpt, 2048, sequence=2048, **old) / (2048 * 12288)  # 34 + 5·96·2048/12288
    114.0
    """
    if recompute not in RECOMPUTE:
        expected = f"expected one of {', '.join(RECOMPUTE)}"
        raise InvalidValue("activation_bytes", [("recompute", recompute, expected)])
    shared = degree if sequence_parallel else 1
    if recompute == "full":
        return tokens * 2 * model.d_model / shared
    cut = 2 * (2 * model.heads * model.head_dim + _kept_keys(model)) + _block(model, gate)
    whole = 8 * model.d_model + (2 * model.d_model if dropout else 0)
    scores = 0.0
    if not fused_attention and recompute == "none":
        scores = (5 if dropout else 4) * model.heads * sequence
    return tokens * (whole / shared + (cut + scores) / degree)


def _kept_keys(model: Transformer) -> float:
    """Return the numbers of keys and values per token: with latent attention as expanded for the heads."""
    if model.latent:
        return model.heads * (model.head_dim + model.latent.rope_dim + model.latent.value_dim)
    return 2 * model.kv_heads * model.head_dim


def _block(model: Transformer, gate: bool) -> float:
    """Return the bytes per token within the feed-forward block, on all experts that a token visits."""
    return 2 * (4 if gate else 2) * model.block_width


def head_bytes(
    model: Transformer, tokens: float, degree: int = 1, sequence_parallel: bool = False
) -> float:
    """Return the bytes that the head keeps of a microbatch: the inputs of norm and matrix, and logits in fp32."""
    shared = degree if sequence_parallel else 1
    return tokens * (4 * model.d_model / shared + 4 * model.vocab / degree)


def weight_share(model: Transformer, *, gate: bool = True, dropout: bool = False) -> float:
    """Return what a layer keeps from input gradient to weight gradients, as a share of what it kept before.

    The gradient of a matrix is a product of its input and of its output's gradient: both wait. For
    GPT's kind of model that is Zero Bubble's 32/34 (Qi et al., 2024, without stored scores).

    Parameters
    ----------
    model : Transformer
        Whose ordinary layer is meant.
    gate, dropout : bool
        As for `activation_bytes`.

    Returns
    -------
    float
        A share, such as `StageCosts(weight_activation=…)` takes.

    Raises
    ------
    InvalidValue
        A number of the model does not fit.

    Examples
    --------
    >>> import pipelab as pl
    >>> round(weight_share(pl.load_model("Llama-3-8B")), 3)
    0.829
    """
    queries, keys = model.heads * model.head_dim, _kept_keys(model)
    width = _block(model, gate) / (8 if gate else 4)
    inputs = 2 * model.d_model + queries + width
    gradients = 2 * model.d_model + queries + keys + (2 if gate else 1) * width
    whole = activation_bytes(model, 1, sequence=1, gate=gate, dropout=dropout)
    return 2 * (inputs + gradients) / whole
