"""Numbers as whole ones, which is all that CP-SAT counts with.

Decimal numbers of few digits become whole exactly. Others are rounded down, in units so fine that a
sum of all is short by less than a billionth: a bound that holds for shorter actions and less memory
holds for the true ones.
"""

from collections.abc import Iterable
from fractions import Fraction
from math import floor, lcm

# Sums of a million actions stay below 2^53, where floats are whole numbers still.
FINEST = 10**12


def exactly(number: float) -> Fraction:
    """The number as it is printed: 0.1 is a tenth, though no float is.

    Examples
    --------
    >>> exactly(0.1)
    Fraction(1, 10)
    """
    return Fraction(repr(float(number)))


def unit_of(numbers: Iterable[float], most: float, parts: int = 1) -> Fraction:
    """How many units make 1: whole for all numbers if sums up to `most` allow it, else as fine as they do.

    Parameters
    ----------
    numbers : iterable of float
        At least 0.
    most : float
        What sums of them do not exceed.
    parts : int
        Every number is this many times a whole number of units.

    Returns
    -------
    Fraction
        Above 0.

    Examples
    --------
    >>> unit_of([1, 0.5, 0.2], most=100)
    Fraction(10, 1)
    >>> float(unit_of([1 / 3], most=100)) == 1e12 / 100
    True
    """
    whole = lcm(*(exactly(number).denominator for number in numbers))
    limit = Fraction(FINEST) / Fraction(max(most, 1e-300))
    return Fraction(whole * parts) if whole * parts <= limit else limit


def in_units(number: float, unit: Fraction) -> int:
    """The number in whole units, rounded down.

    Examples
    --------
    >>> in_units(0.7, Fraction(10)), in_units(2 / 3, Fraction(10))
    (7, 6)
    """
    return floor(exactly(number) * unit)
