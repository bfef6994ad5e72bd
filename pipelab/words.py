"""Small words that many sentences need."""

from collections.abc import Sequence

__all__ = ["counted", "listed", "named"]


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where there is not exactly one.

    Examples
    --------
    >>> counted(1, "stage"), counted(3, "GPU"), counted(0, "layer")
    ('1 stage', '3 GPUs', '0 layers')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """One or more names as a sentence has them.

    Examples
    --------
    >>> listed(["GPipe"]), listed(["model", "workload", "cost model"])
    ('GPipe', 'model, workload and cost model')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def named(names: Sequence[str], one: str = "loses", several: str = "lose") -> str:
    """Up to two by name and the others by number, with the verb.

    Examples
    --------
    >>> named(["a"]), named(["a", "b"]), named(["a", "b", "c", "d"], "keeps", "keep")
    ('a loses', 'a and b lose', 'a, b and 2 more keep')
    """
    if len(names) == 1:
        return f"{names[0]} {one}"
    if len(names) == 2:
        return f"{names[0]} and {names[1]} {several}"
    return f"{names[0]}, {names[1]} and {len(names) - 2} more {several}"
