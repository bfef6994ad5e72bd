"""What the restated Rust programs need of Rust: unsigned numbers that overflow, single precision, and a panic."""

import numpy as np

_U64 = 2**64


class Panic(Exception):
    """The original program would stop here."""


def unsigned(value: int, what: str) -> int:
    """A `usize` or `u64` of a 64-bit debug build: what leaves its range is a panic; `what` is the expression."""
    if 0 <= value < _U64:
        return value
    operation = "subtract" if value < 0 else "multiply" if "*" in what else "add"
    raise Panic(f"attempt to {operation} with overflow: {what}")


def single(value: int) -> np.float32:
    """`value as f32`: the nearest of single precision."""
    return np.float32(np.uint64(value))


def nearest_whole(value: float) -> int:
    """`value.round() as usize`: halves away from zero, and 0 for what is no number."""
    if value != value:
        return 0
    below = int(value)
    return below + (value - below >= 0.5)
