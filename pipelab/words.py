"""Small words that many sentences need."""

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where there is not exactly one.

    Examples
    --------
    >>> counted(1, "stage"), counted(3, "GPU"), counted(0, "layer")
    ('1 stage', '3 GPUs', '0 layers')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
