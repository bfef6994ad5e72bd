"""A decoder-only transformer by its dimensions: every parameter counted, every layer weighed.

Stands where `Model` stands in a `Problem`. The first layer's stage also holds the embedding,
the last one's the head, so not all layers are identical.
"""

from dataclasses import field, replace

from pipelab.display import DataFrame, data_frame, table
from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.fields import Count, Flag, Layers, Natural, Positive, checked, derived
from pipelab.hardware.layer_kinds import Formulas, LayerKind, Lookback, shared_parts
from pipelab.problem import ModelLike
from pipelab.spans import Spans, spans_from_factors

# bytes per element
PRECISIONS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
PRECISIONS |= dict.fromkeys(("int4", "nvfp4", "mxfp4"), 0.5)
# With scales: in int4, every group of 128 has one of 16 bits and a zero of 4 (AWQ, GPTQ); in NVIDIA's 4-bit floats
# every 16 have one of 8 bits, in those of the Open Compute Project (OCP Microscaling Formats, 1.0) every 32.
_SCALES = {"int4": (2.0 + 0.5) / 128, "nvfp4": 1.0 / 16, "mxfp4": 1.0 / 32}  # bytes per weight


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
        Of weights, and of keys and values: "fp32", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4" or
        "mxfp4". Activations have 2 bytes. Below 16 bits, `precision` is that of the layers' matrices:
        embedding, head, norms, biases and routers stay at 16 bits, and "int4" has a scale and a zero
        for every group of 128 weights (see Notes).
    kinds : tuple of LayerKind
        Where layers differ by more than experts and windows: their kinds, the ordinary one first. Then
        the fields above say what an ordinary layer has, and weights come from the kinds.
    pattern : tuple of int
        With `kinds`, the number of each layer's kind.
    last_parameters : int
        Parameters beside the last norm that no other field counts.
    head_bytes_each : float, optional
        Bytes of a weight of the head with its scales, where a checkpoint quantises it.
    draft_layers : int
        Layers for multi-token prediction that are loaded: each weighs what the last layer weighs, beside the head.
        None by default, as engines leave them out unless they draft. No rate and no cache counts them, nor
        `parameters`, as in published totals.

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
    >>> llama.kv_bytes  # per token and layer: 2 bytes × 2 × 8 heads × 128
    4096.0
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
    kinds: tuple[LayerKind, ...] = ()
    pattern: tuple[Natural, ...] = ()
    last_parameters: Natural = 0
    head_bytes_each: Positive | None = None
    draft_layers: Natural = 0

    def __post_init__(self) -> None:
        problems: list[tuple[str, object, str]] = []
        for name in ("precision", "kv_precision"):
            if (value := getattr(self, name)) not in PRECISIONS:
                raise UnknownName(f"there is no {name}={value!r}; {nearest(value, PRECISIONS)}")
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
        numbers = set(range(len(self.kinds)))
        if len(self.pattern) != self.layers * bool(numbers) or not numbers.issuperset(self.pattern):
            expected = f"expected the number of one of {len(numbers)} kinds for each layer"
            problems.append(("pattern", self.pattern, expected))
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
        return self._kind_bytes[0] / 1e9

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight of the layers' matrices, scales included."""
        return PRECISIONS[self.precision] + _SCALES.get(self.precision, 0.0)

    @property
    def kept_bytes(self) -> float:
        """Bytes per weight of what is not quantised: embedding, head, norms, biases, routers."""
        return max(2.0, PRECISIONS[self.precision])

    @property
    def kv_bytes(self) -> float:
        """Bytes of keys and values per token and ordinary layer."""
        return sum(map(self.kept_of_token, self.layer_kinds[0].lookbacks))

    def kept_of_token(self, lookback: Lookback) -> float:
        """Return the bytes that a layer keeps of one token for this lookback.

        Parameters
        ----------
        lookback : Lookback
            Of one of `layer_kinds`.

        Returns
        -------
        float
            In bytes.
        """
        each = lookback.bytes_each
        return lookback.numbers * (PRECISIONS[self.kv_precision] if each is None else each)

    @derived
    def has_experts(self) -> bool:
        """Whether layers have a router."""
        return self.experts > 1

    @property
    def kv_parts(self) -> int:
        """Into how many parts tensor parallelism can cut the cache."""
        return max((x.parts for kind in self.layer_kinds for x in kind.lookbacks), default=1)

    @property
    def block_width(self) -> int:
        """Width of the feed-forward block, of experts those that a token meets."""
        if not self.has_experts:
            return self.d_ff
        return (self.expert_ff or self.d_ff) * (self.experts_per_token + self.shared_experts)

    @derived
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of its layers; the first is the ordinary one."""
        return self.kinds or tuple(self._kind(*of) for of in self._dense_and_full)

    @derived
    def kind_of_layer(self) -> tuple[int, ...]:
        """The number of each layer's kind; L numbers."""
        of = [(i < self.dense_layers, i in self.full_layers) for i in range(self.layers)]
        return self.pattern or tuple(map(self._dense_and_full.index, of))

    @property
    def _dense_and_full(self) -> list[tuple[bool, bool]]:
        """Whether layers of each kind have no experts, and no window, in a model that has them."""
        dense, full = ((False, True)[: 1 + bool(x)] for x in (self.dense_layers, self.full_layers))
        return [(d, f) for f in full for d in dense]

    def _kind(self, dense: bool, full: bool) -> LayerKind:
        """Make the kind of layer with these fields' dimensions, of the parts that all families share."""
        of_latent = vars(self.latent) if self.latent else {}
        biases = (self.heads + 2 * self.kv_heads) * self.head_dim * self.qkv_bias
        inner = self.expert_ff or self.d_ff
        names = {
            "d": self.d_model,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head": self.head_dim,
            "window": None if full else self.window,
            "inner": self.d_ff if dense else inner,
            "experts": self.experts,
            "expert_ff": inner,
            "shared": self.shared_experts,
            "router_bias": int(self.router_bias),
            "attention_vectors": biases,
            "norms": 2 * self.d_model + self.extra_parameters,
            "query_rank": of_latent.get("query_rank") or 0,
            "kv_rank": of_latent.get("kv_rank"),
            "rope": of_latent.get("rope_dim"),
        }
        if self.latent:
            names["value"] = self.latent.value_dim
        block = "routed" if self.has_experts and not dense else "gated"
        attention = "latent" if self.latent else "attention"
        parts = [attention, block, "layer_norms"]
        return Formulas(names.__getitem__, shared_parts(), names).kind(parts)

    def numbers_of_kinds(self, layers: range) -> tuple[int, ...]:
        """Count the layers of each kind among these.

        Parameters
        ----------
        layers : range
            Numbered from 0.

        Returns
        -------
        tuple of int
            One number for each of `layer_kinds`.
        """
        among = [self.kind_of_layer[layer] for layer in layers]
        return tuple(map(among.count, range(len(self.layer_kinds))))

    def layer_parameters(self, kind: LayerKind | None = None, active: bool = False) -> int:
        """Count the parameters of one layer.

        Parameters
        ----------
        kind : LayerKind, optional
            One of `layer_kinds`; by default the ordinary one.
        active : bool
            Only those that a token meets.

        Returns
        -------
        int
            Exact; embedding and head are not among them.
        """
        kind = kind or self.layer_kinds[0]
        not_met = kind.routed // self.experts * (self.experts - self.experts_per_token)
        return kind.parameters - active * not_met

    def layer_bytes(self, kind: LayerKind | None = None, only_routed: bool = False) -> float:
        """Return the bytes of one layer's weights.

        Parameters
        ----------
        kind : LayerKind, optional
            As for `layer_parameters`.
        only_routed : bool
            Of the experts among which a router chooses.

        Returns
        -------
        float
            In bytes; norms, biases and router have `kept_bytes` each.
        """
        kind = kind or self.layer_kinds[0]
        return kind.bytes(self.weight_bytes, self.kept_bytes, only_routed)

    @derived
    def _kind_bytes(self) -> tuple[float, ...]:
        return tuple(map(self.layer_bytes, self.layer_kinds))

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
        of_kinds = zip(self.numbers_of_kinds(layers), self.layer_kinds, strict=True)
        inside = sum(number * self.layer_parameters(kind, active) for number, kind in of_kinds)
        return inside + self._ends(layers, active)

    def cached_bytes(self, layers: range, tokens: int) -> float:
        """Return the bytes that these layers keep of one sequence.

        Parameters
        ----------
        layers : range
            Numbered from 0.
        tokens : int
            Of the sequence.

        Returns
        -------
        float
            Of keys and values, and of states.
        """
        total = 0.0
        for number, kind in zip(self.numbers_of_kinds(layers), self.layer_kinds, strict=True):
            kept = (min(x.window or tokens, tokens) * self.kept_of_token(x) for x in kind.lookbacks)
            total += number * (sum(kept) + kind.state_bytes)
        return total

    def _ends(self, layers: range, active: bool = False) -> int:
        """Count the parameters of embedding, last norm and head, as far as they are with these layers."""
        first, last = 0 in layers, self.layers - 1 in layers
        once = self.tied_embeddings and first and last
        # a token looks up one row of the embedding
        matrices = first * (not active) + last - once * (not active)
        return matrices * self.vocab * self.d_model + last * (self.d_model + self.last_parameters)

    @property
    def head_bytes(self) -> float:
        """Bytes of the head's weights, which a pass reads."""
        each = self.kept_bytes if self.head_bytes_each is None else self.head_bytes_each
        return self.vocab * self.d_model * each

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
        numbers = zip(self.numbers_of_kinds(layers), self._kind_bytes, strict=True)
        inside = sum(number * size for number, size in numbers)
        ends = self._ends(layers) * self.kept_bytes
        if self.head_bytes_each is not None and self.layers - 1 in layers:
            ends += self.head_bytes - self.vocab * self.d_model * self.kept_bytes
        drafts = self.draft_layers * (self.layers - 1 in layers)
        return (inside + ends + drafts * self._kind_bytes[self.kind_of_layer[-1]]) / 1e9

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
    def unmeasured(self) -> str:
        """What no measured model has; empty if there are measurements of such models."""
        kinds = [kind for kind in self.layer_kinds if kind.tensors]
        doubts = {
            "layers with states": any(kind.state_bytes for kind in kinds),
            "selected or compressed attention": any(
                len(kind.lookbacks) > 1 or any(x.selected for x in kind.lookbacks) for kind in kinds
            ),
            "weights in 4-bit floats": self.precision in ("mxfp4", "nvfp4"),
        }
        return ", ".join(doubt for doubt, there in doubts.items() if there)

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
        ends = {"first": 0, "last": self.layers - 1}
        sums = {name: [float(i == end) for i in range(self.layers)] for name, end in ends.items()}
        for other in range(1, len(self.layer_kinds)):
            sums[f"kind {other}"] = [float(kind == other) for kind in self.kind_of_layer]
        kinds = spans_from_factors(self.layers, self.weight_factors, self.work_factors, **sums)
        # Where embedding and head are one matrix, a span with both ends holds it once.
        both_ends = kinds.others["first"] * kinds.others["last"]
        twice = (self.tied_embeddings and self.layers > 1) * both_ends
        matrix = self.head_bytes / self._kind_bytes[0]
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
        kept = f"{self.kv_bytes:,.0f} bytes"
        rows = [
            ("layers", f"{self.layers}"),
            ("d_model, d_ff", f"{self.d_model:,}, {self.d_ff:,}"),
            ("heads, key/value heads", f"{self.heads}, {self.kv_heads} of {self.head_dim}"),
            ("parameters", f"{self.parameters():,}"),
            ("parameters a token meets", f"{self.parameters(active=True):,}"),
            ("weights of one layer", f"{self.layer_weight_gb:.4g} GB ({self.precision})"),
            ("keys and values", f"{kept} per token and layer ({self.kv_precision})"),
        ]
        windows = {x.window for kind in self.layer_kinds for x in kind.lookbacks if x.window}
        for window in sorted(windows):
            kinds = [any(x.window == window for x in kind.lookbacks) for kind in self.layer_kinds]
            having = sum(kinds[kind] for kind in self.kind_of_layer)
            rows.append(("window", f"{window:,} tokens in {having} of {self.layers} layers"))
        return data_frame(rows, columns=[self.name, "value"])
