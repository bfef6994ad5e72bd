"""The objective of a result if it is not throughput: its value, and the least that is possible."""

import math
from dataclasses import dataclass
from typing import NoReturn

from pipelab.engine.tolerances import LAST_BITS, PROVEN_WITHIN, SOLVER
from pipelab.errors import PipelabError


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A quantity that was minimised, under a floor of throughput.

    Attributes
    ----------
    name : str
        Name with its unit, as in a table's column, such as "seconds_per_pass".
    unit : str
        Unit as in a sentence: "seconds per pass".
    value : float or None
        Value of the placement, by `evaluate`; None without one.
    bound : float or None
        No placement that reaches the floor has less; equals `value` if optimal.
    at_least : float
        The floor in tokens/s; 0 where there is none.
    """

    name: str
    unit: str
    value: float | None
    bound: float | None
    at_least: float = 0.0

    @property
    def floor(self) -> str:
        """What the placements have that the proof covers; empty if it covers all."""
        return f"at least {self.at_least:,.7g} tokens/s" if self.at_least else ""

    @property
    def scope(self) -> str:
        """What else the proof is about; empty if nothing."""
        return ""

    def to_dict(self) -> dict:
        """Return plain data for JSON, numbers unrounded."""
        return {
            self.name: self.value,
            f"bound_{self.name}": self.bound,
            "at_least_tokens_per_s": self.at_least,
        }


def status_and_least(value: float | None, bound: float | None) -> tuple[str, float | None]:
    """Return the status of a placement's value and a proven lower bound, and the bound to report.

    Raises
    ------
    PipelabError
        The bound lies above the placement's own value, so one of the two is wrong.

    Examples
    --------
    >>> status_and_least(2.0, 1.5), status_and_least(2.0, 2.0), status_and_least(None, 1.5)
    (('feasible', 1.5), ('optimal', 2.0), ('unknown', 1.5))
    """
    if value is None or bound is None:
        return "unknown" if value is None else "feasible", bound
    if bound > value * (1 + SOLVER):
        _contradiction(f"a least value of {bound} was proved, but a placement has {value}")
    return ("optimal", value) if bound >= value * (1 - PROVEN_WITHIN) else ("feasible", bound)


def status_and_bound(throughput: float | None, bound: float | None) -> tuple[str, float | None]:
    """Return the status of a placement's throughput and a proven bound, and the bound to report.

    Raises
    ------
    PipelabError
        The bound lies below the placement's own throughput, so one of the two is wrong.

    Examples
    --------
    >>> status_and_bound(100.0, 120.0), status_and_bound(100.0, 100.0), status_and_bound(None, 120.0)
    (('feasible', 120.0), ('optimal', 100.0), ('unknown', 120.0))
    """
    if throughput is None or bound is None or bound == math.inf:
        known = None if bound == math.inf else bound
        return "unknown" if throughput is None else "feasible", known
    if bound < throughput * (1 - SOLVER):
        _contradiction(f"a bound of {bound} was proved, but a placement yields {throughput}")
    optimal = bound <= throughput * (1 + LAST_BITS)
    return ("optimal", throughput) if optimal else ("feasible", bound)


def _contradiction(what: str) -> NoReturn:
    raise PipelabError(f"{what}: one of them is wrong")
