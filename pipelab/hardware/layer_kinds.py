"""Kinds of layers of a language model: the weights of a layer, and what it keeps of earlier tokens.

A model is a list of layers, each of one of a few kinds. What kinds are made of is data: parts and families of
`data/model_families.toml`, which says how its formulas are read.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

from pipelab.fields import Frozen, derived
from pipelab.files.bundled_folders import data_dir


@dataclass(frozen=True, kw_only=True)
class WeightTensor:
    """Weights of one module of a layer, or of the same module of each of its experts."""

    module: str
    rows: int
    columns: int = 1
    experts: int = 1  # that have one each
    routed: bool = False  # whether a token visits only some of them
    kept: bool = False  # in 16 bits, whatever the precision of matrices: norms, biases, routers
    bytes_each: float | None = None  # with scales; None: as the model's precision has it

    @property
    def size(self) -> int:
        """Count the weights, of all experts."""
        return self.rows * self.columns * self.experts


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class LayerKind(Frozen):
    """One kind of layer."""

    tensors: tuple[WeightTensor, ...]
    lookbacks: tuple[Lookback, ...] = ()
    state_bytes: float = 0.0  # of each sequence, however long

    def __hash__(self) -> int:
        return self._hash

    @derived
    def _hash(self) -> int:
        return hash((self.tensors, self.lookbacks, self.state_bytes))

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


_SHARED = ("fields", "defaults", "names", "parts")


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((data_dir() / "model_families.toml").read_text(encoding="utf-8"))


@cache
def shared_parts() -> dict[str, Any]:
    """Return what all families share: defaults, names, and parts."""
    base: dict[str, Any] = {"layers": [], "marks": {}, "refused": {}, "required": []}
    return base | {table: _tables()[table] for table in _SHARED}


@cache
def model_families() -> dict[str, dict[str, Any]]:
    """Return the families of `data/model_families.toml` by their `model_type`, with what they take from others."""
    return {name: _complete(name) for name in _tables() if name not in _SHARED}


def _complete(name: str) -> dict[str, Any]:
    family = _tables()[name]
    whole = _complete(family["like"]) if "like" in family else dict(shared_parts())
    for key, given in family.items():
        whole[key] = whole.get(key, {}) | given if isinstance(given, dict) else given
    return whole


@cache
def _compiled(formula: str) -> CodeType:
    return compile(formula, "data/model_families.toml", "eval")


class Formulas(dict[str, Any]):
    """The values of a family's names: by its formulas, or as `ask` answers what no formula has.

    Formulas are the package's; a configuration gives values alone.
    """

    def __init__(
        self, ask: Callable[[str], Any], family: Mapping[str, Any], known: Mapping[str, Any]
    ) -> None:
        self.ask = ask
        self.formulas, self.parts = family["names"], family["parts"]
        super().__init__(known, int=int, len=len, max=max)

    def __missing__(self, name: str) -> Any:
        if name in self.formulas:
            value = self.value(self.formulas[name])
        else:
            value = name if name in self.parts else self.ask(name)
        self[name] = value
        return value

    def value(self, formula: str) -> Any:
        """Compute a formula, which is the package's own."""
        return eval(_compiled(formula), {"__builtins__": {}}, self)

    def kind(self, parts: Sequence[str]) -> LayerKind:
        """Make the kind of layer that has these parts."""
        chosen = [self.parts[part] for part in parts]
        weights = [pair for part in chosen for pair in part["weights"].items()]
        tensors = [self._tensor(module, self.value(formula)) for module, formula in weights]
        looks = [
            Lookback(**{name: self.value(formula) for name, formula in one.items()})
            for part in chosen
            for one in part.get("lookbacks", ())
        ]
        state = sum(self.value(part["state"]) for part in chosen if "state" in part)
        there = tuple(tensor for tensor in tensors if tensor.size)
        return LayerKind(tensors=there, lookbacks=tuple(looks), state_bytes=float(state))

    def _tensor(self, module: str, shape: Any) -> WeightTensor:
        sizes = list(shape) if isinstance(shape, tuple | list) else [shape, 1]
        if any(type(size) is not int or size < 0 for size in sizes):
            raise ValueError(f"{module} of {sizes} weights")
        experts, rows, columns = sizes if len(sizes) == 3 else (1, *sizes)
        return WeightTensor(
            module=module.format_map(self),
            rows=rows,
            columns=columns,
            experts=experts,
            routed=len(sizes) == 3,
            kept=not isinstance(shape, tuple),
        )
