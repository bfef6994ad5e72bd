"""Small words that many sentences need."""

from collections.abc import Sequence

__all__ = ["counted", "duration", "listed", "named"]

_YEAR = 365.25 * 24 * 3600
# Up to so many seconds, a length of time is told in units of so many seconds.
_UNITS = ((1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "minutes"), (172_800, 3600, "hours"),
          (2 * _YEAR, 86_400, "days"))  # fmt: skip


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where there is not exactly one.

    Examples
    --------
    >>> counted(1, "stage"), counted(3, "GPU"), counted(0, "layer")
    ('1 stage', '3 GPUs', '0 layers')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A length of time in the unit that fits.

    Parameters
    ----------
    seconds : float
        At least 0.

    Returns
    -------
    str
        Three digits, from microseconds to years; years beyond a million as a power of ten.

    Examples
    --------
    >>> duration(2.15e-5), duration(1.927), duration(5400), duration(86_400 * 365.25 * 40)
    ('21.5 µs', '1.93 s', '90 minutes', '40 years')
    >>> duration(1e25)
    '3.17·10^17 years'
    """
    for limit, unit, name in _UNITS:
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}" if seconds else "0 s"
    years = seconds / _YEAR
    if years < 1e6:
        return f"{years:,.3g} years" if years < 1000 else f"{years:,.0f} years"
    digits, power = f"{years:.2e}".split("e")
    return f"{digits}·10^{int(power)} years"


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
