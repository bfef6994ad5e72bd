"""One layer of a transformer by its dimensions: parameters, bytes, keys and values."""

from typing import Literal

from pipelab.fields import Count, Flag, Natural, checked

# bytes per element
PRECISIONS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
# Of weights in 4 bits: every group of 128 has a scale of 16 bits and a zero of 4 (AWQ, GPTQ).
INT4_GROUP = 128
INT4_BYTES = 0.5 + (2.0 + 0.5) / INT4_GROUP


@checked
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2024): keys and values are kept as one short vector.

    Parameters
    ----------
    query_rank, kv_rank : int
        Widths of the compressed queries (None: they are not compressed), and of the compressed keys
        and values that are cached.
    rope_dim : int
        Width of the part of keys and queries that carries the position, cached too.
    value_dim : int
        Width of one head's value.

    Raises
    ------
    InvalidValue
        A width is no positive whole number.

    References
    ----------
    DeepSeek-AI, *DeepSeek-V2*, 2024.
    """

    query_rank: Count | None
    kv_rank: Count
    rope_dim: Count
    value_dim: Count


class LayerSizes:
    """The part of `Transformer` that counts one layer; its fields are described there."""

    d_model: Count
    d_ff: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    experts: Count
    experts_per_token: Count
    shared_experts: Natural
    expert_ff: Count | None
    qkv_bias: Flag
    router_bias: Flag
    extra_parameters: Natural
    latent: LatentAttention | None
    precision: str
    kv_precision: str

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight of the layers' matrices, scales included."""
        return INT4_BYTES if self.precision == "int4" else PRECISIONS[self.precision]

    @property
    def kept_bytes(self) -> float:
        """Bytes per weight of what is not quantised: embedding, head, norms, biases, routers."""
        return max(2.0, PRECISIONS[self.precision])

    @property
    def kv_bytes(self) -> float:
        """Bytes of keys and values per token and layer."""
        return self.kv_elements * PRECISIONS[self.kv_precision]

    @property
    def has_experts(self) -> bool:
        """Whether layers have a router."""
        return self.experts > 1

    @property
    def kv_elements(self) -> int:
        """Numbers cached per token and layer."""
        if self.latent:
            return self.latent.kv_rank + self.latent.rope_dim
        return 2 * self.kv_heads * self.head_dim

    @property
    def kv_parts(self) -> int:
        """Into how many parts tensor parallelism can cut the cache."""
        return 1 if self.latent else self.kv_heads

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention."""
        d, h, wide = self.d_model, self.head_dim, self.heads * self.head_dim
        if self.latent:
            q, kv, rope, value = (
                getattr(self.latent, n) for n in ("query_rank", "kv_rank", "rope_dim", "value_dim")
            )
            up = self.heads * (h + rope)
            queries = d * q + q + q * up if q else d * up  # down, norm, up
            keys = d * (kv + rope) + kv + kv * self.heads * (h + value)
            return queries + keys + self.heads * value * d
        return 2 * d * wide + 2 * d * self.kv_heads * h + self._qkv_biases

    @property
    def _qkv_biases(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert; of the whole feed-forward block where there are none."""
        return 3 * self.d_model * (self.expert_ff or self.d_ff)

    def layer_parameters(
        self, kind: Literal["ordinary", "dense"] = "ordinary", active: bool = False
    ) -> int:
        """Parameters of one layer.

        Parameters
        ----------
        kind : {"ordinary", "dense"}
            With experts, where the model has any; or one of `dense_layers`.
        active : bool
            Only those that a token meets.

        Returns
        -------
        int
            Exact; embedding and head are not among them.
        """
        shared = self.attention_parameters + 2 * self.d_model + self.extra_parameters  # two norms
        if kind == "dense":
            return shared + 3 * self.d_model * self.d_ff
        experts = (self.experts_per_token if active else self.experts) + self.shared_experts
        router = self.d_model * self.experts if self.has_experts else 0
        bias = self.experts if self.router_bias and self.has_experts else 0
        return shared + experts * self.expert_parameters + router + bias

    def layer_bytes(self, kind: Literal["ordinary", "dense"] = "ordinary") -> float:
        """Weights of one layer.

        Parameters
        ----------
        kind : {"ordinary", "dense"}
            As for `layer_parameters`.

        Returns
        -------
        float
            In bytes; norms, biases and router have `kept_bytes` each.
        """
        kept = 2 * self.d_model + self.extra_parameters
        if self.latent:
            kept += (self.latent.query_rank or 0) + self.latent.kv_rank  # norms
        else:
            kept += self._qkv_biases
        if kind == "ordinary" and self.has_experts:
            kept += (self.d_model + self.router_bias) * self.experts
        matrices = self.layer_parameters(kind) - kept
        return matrices * self.weight_bytes + kept * self.kept_bytes
