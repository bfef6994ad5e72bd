"""Small words that many sentences need."""

from collections.abc import Sequence

__all__ = ["counted", "listed"]


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
