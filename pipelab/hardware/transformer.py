"""A decoder-only transformer by its dimensions: every parameter counted, every layer weighed.

Stands where `Model` stands in a `Problem`. The first layer's stage also holds the embedding,
the last one's the head, so not all layers are identical.
"""

from dataclasses import field, replace
from typing import Literal

from pipelab.display import DataFrame, data_frame, table
from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.fields import Count, Flag, Layers, Natural, checked, derived
from pipelab.problem import ModelLike
from pipelab.spans import Spans, spans_from_factors

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


@checked
class Transformer(ModelLike):
    """A language model as its published configuration describes it.

    Parameters
    ----------
    name : str
        For titles and messages.
    layers : int
        Number of decoder layers L, at most 100,000.
    d_model, d_ff : int
        Width of the residual stream, and of the (gated, three-matrix) feed-forward block.
    heads, kv_heads, head_dim : int
        Query heads, key/value heads (fewer with grouped heads), width of one.
    vocab : int
        Tokens of the vocabulary: rows of the embedding and of the head.
    experts, experts_per_token, shared_experts : int
        Routed experts of a layer, how many of them a token visits, and those that every token
        visits.
    expert_ff : int, optional
        Width of one expert; by default `d_ff`.
    dense_layers : int
        So many first layers have no experts but one block of width `d_ff`.
    qkv_bias, router_bias, tied_embeddings : bool
        Tied: embedding and head are one matrix; where they lie on two stages, each holds a copy.
    extra_parameters : int
        Parameters of every layer that no other field counts: norms of queries and keys, biases of
        the attention's output or of the feed-forward block, the gate of a shared expert.
    window : int, optional
        A token looks back at no more than so many, and no more are cached; in every layer but
        those of `full_layers`.
    full_layers : tuple of int
        Layers, numbered from 0, in which a token looks back at everything though the model has a
        window.
    latent : LatentAttention, optional
        Where keys and values are kept as one short vector.
    precision, kv_precision : str
        Of weights, and of keys and values: "fp32", "bf16", "fp16", "fp8", "int8" or "int4".
        Activations have 2 bytes. Below 16 bits, `precision` is that of the layers' matrices:
        embedding, head, norms, biases and routers stay at 16 bits, and "int4" has a scale and a zero
        for every group of 128 weights (see Notes).

    Raises
    ------
    InvalidValue
        A number does not fit: no positive whole one, `kv_heads` no divisor of `heads`, more experts
        per token than there are, more dense layers, or full layers that are not there.
    UnknownName
        There is no such precision.

    Notes
    -----
    So do checkpoints made with AWQ, GPTQ and llm-compressor, and DeepSeek's own fp8: Llama-3-8B takes
    5.73 GB in int4 and 9.08 GB in fp8, not 4.02 and 8.03. Scales of 8-bit weights are too few to
    count (0.02 % of DeepSeek-V3). llama.cpp's formats differ: Q4_K_M has 4.8 bits per weight, the
    head among them.

    Examples
    --------
    >>> import pipelab as pl
    >>> llama = pl.load_model("Llama-3-70B")
    >>> f"{llama.parameters():,}"
    '70,553,706,496'
    >>> llama.kv_elements  # per token and layer: 2 × 8 heads × 128
    2048
    """

    name: str
    layers: Layers
    d_model: Count
    d_ff: Count
    heads: Count = field()  # must be given here, where `ModelLike` has a default
    kv_heads: Count
    head_dim: Count
    vocab: Count
    experts: Count = 1
    experts_per_token: Count = 1
    shared_experts: Natural = 0
    expert_ff: Count | None = None
    dense_layers: Natural = 0
    qkv_bias: Flag = False
    router_bias: Flag = False
    tied_embeddings: Flag = False
    extra_parameters: Natural = 0
    window: Count | None = None
    full_layers: tuple[Natural, ...] = ()
    latent: LatentAttention | None = None
    precision: str = "bf16"
    kv_precision: str = "bf16"

    def __post_init__(self) -> None:
        problems: list[tuple[str, object, str]] = []
        for name in ("precision", "kv_precision"):
            if getattr(self, name) not in PRECISIONS:
                raise UnknownName(
                    f"there is no {name}={getattr(self, name)!r}; {nearest(str(getattr(self, name)), PRECISIONS)}"
                )
        if self.heads % self.kv_heads:
            expected = f"expected a divisor of heads = {self.heads}: each key/value head serves equally many queries"
            problems.append(("kv_heads", self.kv_heads, expected))
        if self.experts_per_token > self.experts:
            expected = f"expected at most experts = {self.experts}"
            problems.append(("experts_per_token", self.experts_per_token, expected))
        if self.dense_layers > self.layers or (self.dense_layers and not self.has_experts):
            expected = f"expected at most layers = {self.layers}, and 0 in a model without experts"
            problems.append(("dense_layers", self.dense_layers, expected))
        if self.full_layers and self.window is None:
            expected = "expected none in a model without a window: all of its layers are"
            problems.append(("full_layers", self.full_layers, expected))
        elif self.full_layers:
            object.__setattr__(self, "full_layers", tuple(sorted(set(self.full_layers))))
            if self.full_layers[-1] >= self.layers:
                expected = f"expected numbers from 0 to {self.layers - 1}"
                problems.append(("full_layers", self.full_layers[-1], expected))
        if problems:
            raise InvalidValue("Transformer", problems)

    bytes_per_element = 2.0  # of activations

    @derived
    def d_hidden(self) -> int:
        """Another name of `d_ff`."""
        return self.d_ff

    @derived
    def layer_weight_gb(self) -> float:
        """Weights of one ordinary layer (with experts, where there are any), in 10^9 bytes."""
        return self.layer_bytes() / 1e9

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight of the layers' matrices, scales included."""
        return INT4_BYTES if self.precision == "int4" else PRECISIONS[self.precision]

    @property
    def kept_bytes(self) -> float:
        """Bytes per weight of what is not quantised: embedding, head, norms, biases, routers."""
        return max(2.0, PRECISIONS[self.precision])

    @derived
    def kv_bytes(self) -> float:
        """Bytes of keys and values per token and layer."""
        return self.kv_elements * PRECISIONS[self.kv_precision]

    @derived
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

    @property
    def block_width(self) -> int:
        """Width of the feed-forward block, of experts those that a token meets."""
        if not self.has_experts:
            return self.d_ff
        return (self.expert_ff or self.d_ff) * (self.experts_per_token + self.shared_experts)

    def layer_parameters(
        self, kind: Literal["ordinary", "dense"] = "ordinary", active: bool = False
    ) -> int:
        """Count the parameters of one layer.

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
        """Return the bytes of one layer's weights.

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

    def parameters(self, layers: range | None = None, active: bool = False) -> int:
        """Count the parameters of these layers, with embedding and head where they are among them.

        Parameters
        ----------
        layers : range, optional
            Numbered from 0; by default the whole model.
        active : bool
            Only those that a token meets.

        Returns
        -------
        int
            Exact; of a whole model as published (`data/models.csv`).
        """
        layers = range(self.layers) if layers is None else layers
        dense = self._dense_among(layers)
        plain = (len(layers) - dense) * self.layer_parameters(active=active)
        return plain + dense * self.layer_parameters("dense", active) + self._ends(layers, active)

    def _dense_among(self, layers: range) -> int:
        return sum(i < self.dense_layers for i in layers)

    def full_among(self, layers: range) -> tuple[int, int]:
        """Count the layers that look back at everything though the model has a window.

        Parameters
        ----------
        layers : range
            Consecutive ones, numbered from 0.

        Returns
        -------
        tuple of int
            All of them, and those among `dense_layers`.
        """

        full = [layer for layer in self.full_layers if layer in layers]
        return len(full), sum(layer < self.dense_layers for layer in full)

    @derived
    def without_window(self) -> "Transformer":
        """Return this model without windows: all of its layers look back at everything."""
        return replace(self, window=None, full_layers=())

    def _ends(self, layers: range, active: bool = False) -> int:
        """Count the parameters of embedding, last norm and head, as far as they are with these layers."""
        first, last = 0 in layers, self.layers - 1 in layers
        once = self.tied_embeddings and first and last
        # a token looks up one row of the embedding
        matrices = first * (not active) + last - once * (not active)
        return matrices * self.vocab * self.d_model + last * self.d_model

    def weight_gb(self, layers: range) -> float:
        """Weigh these layers, with embedding and head where they are among them.

        Parameters
        ----------
        layers : range
            Numbered from 0.

        Returns
        -------
        float
            In GB (10^9 bytes).
        """
        dense = self._dense_among(layers)
        plain = (len(layers) - dense) * self.layer_bytes()
        ends = self._ends(layers) * self.kept_bytes
        return (plain + dense * self.layer_bytes("dense") + ends) / 1e9

    def work(self, layers: range) -> float:
        """Return the work of these layers, in ordinary layers, by the parameters a token meets.

        Parameters
        ----------
        layers : range
            Numbered from 0.

        Returns
        -------
        float
            More than their number where the head is among them.
        """
        return self.parameters(layers, active=True) / self.layer_parameters(active=True)

    @derived
    def weight_factors(self) -> tuple[float, ...]:
        """How many ordinary layers each layer weighs, with embedding and head; L numbers."""
        ordinary = self.layer_weight_gb
        return tuple(self.weight_gb(range(i, i + 1)) / ordinary for i in range(self.layers))

    @derived
    def work_factors(self) -> tuple[float, ...]:
        """How many ordinary layers each layer works as long as, by `work`; L numbers."""
        return tuple(self.work(range(i, i + 1)) for i in range(self.layers))

    @derived
    def spans(self) -> Spans:
        """The different kinds of consecutive layers, U of them: by number, dense and full ones, and both ends.

        Raises
        ------
        TooLarge
            There are too many layers that differ.
        """
        number = range(self.layers)
        first, last = ([float(i == end) for i in number] for end in (0, self.layers - 1))
        sums = {"dense": [float(i < self.dense_layers) for i in number]}
        if self.full_layers:
            pairs = [self.full_among(range(i, i + 1)) for i in number]
            sums["full"], sums["full_dense"] = (
                list(map(float, column)) for column in zip(*pairs, strict=True)
            )
        kinds = spans_from_factors(
            self.layers, self.weight_factors, self.work_factors, first=first, last=last, **sums
        )
        # Where embedding and head are one matrix, a span with both ends holds it once.
        twice = (
            (self.tied_embeddings and self.layers > 1)
            * kinds.others["first"]
            * kinds.others["last"]
        )
        matrix = self.vocab * self.d_model * self.kept_bytes / self.layer_bytes()
        return replace(kinds, weight=kinds.weight - twice * matrix)

    def _repr_html_(self) -> str:
        return table(self.to_frame())

    def to_frame(self) -> DataFrame:
        """Tabulate dimensions, parameters and sizes.

        Returns
        -------
        pandas.DataFrame
            Two columns of text, the first with the model's name as its title.
        """
        rows = [
            ("layers", f"{self.layers}"),
            ("d_model, d_ff", f"{self.d_model:,}, {self.d_ff:,}"),
            ("heads, key/value heads", f"{self.heads}, {self.kv_heads} of {self.head_dim}"),
            ("parameters", f"{self.parameters():,}"),
            ("parameters a token meets", f"{self.parameters(active=True):,}"),
            ("weights of one layer", f"{self.layer_weight_gb:.4g} GB ({self.precision})"),
            (
                "keys and values",
                f"{self.kv_bytes:,.0f} bytes per token and layer ({self.kv_precision})",
            ),
        ]
        if self.window is not None:
            windows = self.layers - len(self.full_layers)
            rows.append(("window", f"{self.window:,} tokens in {windows} of {self.layers} layers"))
        return data_frame(rows, columns=[self.name, "value"])
