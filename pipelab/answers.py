"""What all answers share: a placement, a deployment, a schedule, a training step.

Each has a status, a value that was to be greatest or least, and a bound on the best; so how far it may be
from the best, why it ended and how that is said are written here once.
"""

from html import escape

from pipelab.display import NO_FORMULAS, ended, ending, number

__all__ = ["Answer"]


class Answer:
    """An answer with its proof, or with how far from the best it may be.

    Attributes
    ----------
    status : str
        "optimal", "feasible", "infeasible" or "unknown".
    reason : str
        Why there is none, or why its proof is missing.
    stopped_by : str or None
        What ended the search early.
    """

    status: str
    reason: str
    stopped_by: str | None

    @property
    def _goal(self) -> tuple[float | None, float | None, bool]:
        """Its value, the bound on that of the best, and whether the least is sought."""
        raise NotImplementedError

    @property
    def _title(self) -> str:
        """What stands in bold before its sentence."""
        raise NotImplementedError

    @property
    def sentence(self) -> str:
        """The answer in words."""
        raise NotImplementedError

    @property
    def gap(self) -> float | None:
        """How much better the best may be, as a share of this answer.

        None without an answer or without a bound.
        """
        value, bound, least = self._goal
        if value is None or bound is None:
            return None
        if least:
            return max(0.0, 1 - bound / value) if value else 0.0
        return max(0.0, bound / value - 1)

    @property
    def _why(self) -> str:
        """Why it ended before its proof, in brackets."""
        return f" ({ending(self.stopped_by)})" if self.stopped_by else ""

    def _up_to(self, what: str, better: str) -> str:
        """How far from the best it may be; empty if nothing is known."""
        bound = self._goal[1]
        if self.gap is None or bound is None:
            return ""
        return f"{what} may be up to {self.gap:.2%} {better} (bound {number(bound)})"

    def _none_found(self, what: str, bound: str = "") -> str:
        """The sentence of an answer without one."""
        if self.status == "infeasible":
            return f"No {what} exists: {self.reason}."
        before = f" before the {self.stopped_by}" if self.stopped_by else ""
        return f"No {what} was found{before}{bound}." + self._remark

    @property
    def _remark(self) -> str:
        return f" {self.reason[0].upper()}{self.reason[1:]}." if self.reason else ""

    def _shown(self, below: str) -> str:
        """The sentence as HTML, and what is shown below it."""
        head = f"<b>{escape(self._title)}:</b> {ended(self, html=True)}: {escape(self.sentence)}"
        return f"<p class='{NO_FORMULAS}'>{head}</p>{below}"
