"""Kinds of layers of a language model: the weights of a layer, and what it keeps of earlier tokens.

A model is a list of layers, each of one of a few kinds. Functions here name the parts from which kinds are made:
`grouped_attention`, `latent_attention`, `gated_block`, `routed_experts`. Modules have the names of checkpoints.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipelab.fields import derived


@dataclass(frozen=True)
class WeightTensor:
    """Weights of one module of a layer, or of the same module of each of its experts."""

    module: str
    rows: int
    columns: int = 1
    experts: int = 1  # that have one each
    routed: bool = False  # whether a token visits only some of them
    kept: bool = False  # in 16 bits, whatever the precision of matrices: norms, biases, routers
    bytes_each: float | None = (
        None  # of a weight with its scales; None: as the model's precision has it
    )

    @property
    def size(self) -> int:
        """Count the weights, of all experts."""
        return self.rows * self.columns * self.experts


@dataclass(frozen=True)
class Lookback:
    """Numbers that a layer keeps of every token, and later tokens read."""

    numbers: float  # kept of each token; a fraction where several tokens share an entry
    reading: float  # FLOPs for each pair of a token of a prompt and one that it looks back at
    writing: float  # for each such pair of a token of an answer
    parts: int = 1  # into how many tensor parallelism can cut them
    window: int | None = None  # kept, and read, of no more tokens
    selected: int | None = None  # read of no more tokens, though all are kept
    bytes_each: float | None = None  # None: as the model keeps keys and values

    @property
    def most_read(self) -> int | None:
        """Tokens that one looks back at, at most; None: all."""
        return min(filter(None, (self.window, self.selected)), default=None)


@dataclass(frozen=True)
class LayerKind:
    """One kind of layer."""

    tensors: tuple[WeightTensor, ...]
    lookbacks: tuple[Lookback, ...] = ()
    state_bytes: float = 0.0  # of each sequence, however long

    @derived
    def parameters(self) -> int:
        """Count all weights."""
        return sum(tensor.size for tensor in self.tensors)

    @derived
    def routed(self) -> int:
        """Count the weights of experts that a token may or may not visit."""
        return sum(tensor.size for tensor in self.tensors if tensor.routed)

    def bytes(self, matrix_bytes: float, kept_bytes: float, only_routed: bool = False) -> float:
        """Weigh what has no bytes of its own by those of matrices, and of what is kept in 16 bits."""
        chosen = [tensor for tensor in self.tensors if tensor.routed or not only_routed]
        other = sum(t.size * t.bytes_each for t in chosen if t.bytes_each is not None)
        plain = [tensor for tensor in chosen if tensor.bytes_each is None]
        kept = sum(tensor.size for tensor in plain if tensor.kept)
        matrices = sum(tensor.size for tensor in plain) - kept
        return matrices * matrix_bytes + kept * kept_bytes + other


def vector(module: str, size: int) -> WeightTensor:
    """Name weights that are no matrix, such as norms and biases."""
    return WeightTensor(module, size, kept=True)


def gated_block(
    width: int, inner: int, module: str = "mlp", experts: int = 1, gate: bool = True
) -> tuple[WeightTensor, ...]:
    """Name the matrices of a feed-forward block: three, or two without a gate."""
    into = ("gate_proj", "up_proj") if gate else ("up_proj",)
    matrices = [WeightTensor(f"{module}.{name}", inner, width, experts) for name in into]
    return (*matrices, WeightTensor(f"{module}.down_proj", width, inner, experts))


def routed_experts(
    width: int, inner: int, experts: int, module: str = "mlp", bias: bool = False, gate: bool = True
) -> tuple[WeightTensor, ...]:
    """Name the matrices of experts among which a router chooses, and the router with its bias."""
    matrices = gated_block(width, inner, f"{module}.experts", experts, gate)
    routed = tuple(replace(tensor, routed=True) for tensor in matrices)
    router = WeightTensor(f"{module}.gate", experts, width, kept=True)
    return (*routed, router, vector(f"{module}.gate.e_score_correction_bias", bias * experts))


def grouped_attention(
    width: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    value_dim: int | None = None,
    window: int | None = None,
    gate: bool = False,
    values: bool = True,
) -> tuple[tuple[WeightTensor, ...], Lookback]:
    """Name the matrices of attention with grouped heads, and what it looks back at.

    With a `gate`, queries have as many more; without `values`, keys are the values, and both are cached.
    """
    value_dim = value_dim or head_dim
    rows = {"q_proj": heads * head_dim * (1 + gate), "k_proj": kv_heads * head_dim}
    rows |= {"v_proj": kv_heads * value_dim} if values else {}
    matrices = [WeightTensor(f"self_attn.{name}", size, width) for name, size in rows.items()]
    matrices.append(WeightTensor("self_attn.o_proj", width, heads * value_dim))
    pair = 2 * heads * (head_dim + value_dim)
    kept = kv_heads * (head_dim + value_dim)
    return tuple(matrices), Lookback(kept, pair, pair, kv_heads, window)


def latent_attention(
    width: int,
    heads: int,
    head_dim: int,
    latent: tuple[int | None, int, int, int],
    *,
    window: int | None = None,
    selected: int | None = None,
) -> tuple[tuple[WeightTensor, ...], Lookback]:
    """Name the matrices of latent attention with its norms, and what it looks back at.

    Prefill expands the latent vector into heads; decode works on the vector itself (DeepSeek-V2, 2.1.2).
    `latent` has the ranks of queries and of keys, and the widths of the rotated part and of a value.
    """
    query_rank, kv_rank, rope, value = latent
    shapes = {"q_proj": (heads * (head_dim + rope), width)}
    if query_rank:
        shapes = {
            "q_a_proj": (query_rank, width),
            "q_b_proj": (heads * (head_dim + rope), query_rank),
        }
    shapes |= {
        "kv_a_proj_with_mqa": (kv_rank + rope, width),
        "kv_b_proj": (heads * (head_dim + value), kv_rank),
        "o_proj": (width, heads * value),
    }
    matrices = [WeightTensor(f"self_attn.{name}", *shape) for name, shape in shapes.items()]
    norms = vector("self_attn.a_layernorms", (query_rank or 0) + kv_rank)
    reading, writing = 2 * heads * (head_dim + rope + value), 2 * heads * (2 * kv_rank + rope)
    lookback = Lookback(kv_rank + rope, reading, writing, 1, window, selected)
    return (*matrices, norms), lookback


def stored(kind: LayerKind, bytes_of: Callable[[WeightTensor], float | None]) -> LayerKind:
    """Return the kind with the bytes of a weight of every tensor, as a checkpoint stores it."""
    tensors = [replace(tensor, bytes_each=bytes_of(tensor)) for tensor in kind.tensors]
    return replace(kind, tensors=tuple(tensors))
