"""The answer of every method: a placement, how good it is, and how far it may be from the best."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelab.display import NO_FORMULAS, ended
from pipelab.engine.objective import Objective
from pipelab.engine.solvers.solver_run import ending
from pipelab.errors import InvalidValue, PipelabError
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Result", "placement_in", "status_and_bound"]


def status_and_bound(throughput: float | None, bound: float | None) -> tuple[str, float | None]:
    """The status that a placement and a proven bound amount to, and the bound to report.

    Raises
    ------
    PipelabError
        The bound lies below the placement's own throughput, so one of the two is wrong.

    Examples
    --------
    >>> status_and_bound(100.0, 120.0), status_and_bound(100.0, 100.0), status_and_bound(None, 120.0)
    (('feasible', 120.0), ('optimal', 100.0), ('unknown', 120.0))
    """
    if throughput is None:
        return "unknown", bound
    if bound is None:
        return "feasible", None
    if bound < throughput * (1 - 1e-6):
        raise PipelabError(
            f"a bound of {bound} was proved, but a placement yields {throughput}: one of them is wrong"
        )
    if bound <= throughput * (1 + 1e-12):  # equal but for the last bits of the arithmetic
        return "optimal", throughput
    return "feasible", bound


@dataclass(frozen=True, eq=False)
class Result:
    """What `solve` returns.

    Attributes
    ----------
    problem : Problem
        What was asked.
    method : str
        Who answered: a method of `solve`, "cheapest" or "quickest".
    status : str
        "optimal": proven, the bound equals the throughput (or the objective's value). "feasible": a
        placement without that proof. "infeasible": no placement exists, see `reason`. "unknown": no
        placement was found, and it is not proven that there is none.
    placement : Placement or None
        The answer; None where there is none.
    throughput : float or None
        Of the placement as `evaluate` recomputes it, tokens/s.
    bound : float or None
        No placement is faster, tokens/s. None where something else was asked for: see `objective`.
    seconds : float
        From the call to the answer.
    size : mapping of str to int
        What the method worked on: allocations, connections, variables, rows, …
    solver : str
        Name and version; empty where none was called.
    reason : str
        Why there is no placement, or why its proof is missing; of "exhaustive", how many placements
        were tried. Empty otherwise.
    stopped_by : str or None
        "time limit", "gap limit", "stop", "interrupt", … where it ended early.
    details : mapping
        What only this method has: build_seconds, nodes, root_bound, progress, …
    objective : Objective or None
        What was to be least, where it was not throughput that was to be greatest; with its own
        bound.
    """

    problem: Problem
    method: str
    status: str
    placement: Placement | None
    throughput: float | None
    bound: float | None
    seconds: float
    size: Mapping[str, int] = field(default_factory=dict)
    solver: str = ""
    reason: str = ""
    stopped_by: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    objective: Objective | None = None

    @property
    def gap(self) -> float | None:
        """By how much the best placement may be faster (or its objective lower), as a share of this one's.

        None where there is no placement or no bound.
        """
        if self.objective is not None:
            return self.objective.gap
        if self.throughput is None or self.bound is None:
            return None
        return max(0.0, self.bound / self.throughput - 1)

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """Stages, links and bottleneck, recomputed from the raw data; None without a placement."""
        return evaluate(self.problem, self.placement) if self.placement else None

    @property
    def sentence(self) -> str:
        """The answer in one sentence; a second one where links are counted as the write-up counts them."""
        mistaken = self.problem.link_units == "transfers" and len(self.problem.cluster) > 1
        return self._answer + (
            " Links count transfers/s here, as in the write-up." if mistaken else ""
        )

    @property
    def _answer(self) -> str:
        if self.status == "infeasible":
            return f"No placement exists: {self.reason}."
        if self.status == "unknown":
            bound = f"; none can exceed {self.bound:.7g} tokens/s" if self.bound is not None else ""
            if self.objective is not None and self.objective.bound:
                goal = self.objective
                bound = f"; none{goal.among} has less than {goal.bound:.7g} {goal.unit}"
            before = f" before the {self.stopped_by}" if self.stopped_by else ""
            return f"No placement was found{before}{bound}." + self._remark
        why = f" ({ending(self.stopped_by)})" if self.stopped_by else ""
        rate = f"{self.throughput:.7g} tokens/s"
        if self.objective is not None:
            return self._least(rate, why) + self._remark
        if self.status == "optimal":
            return f"{rate}, proven optimal in {self.seconds:.3g} s." + self._remark
        far = (
            f"; the best may be up to {self.gap:.2%} faster (bound {self.bound:.7g})"
            if self.bound
            else ""
        )
        return f"{rate}, not proven optimal{why}{far}." + self._remark

    def _least(self, rate: str, why: str) -> str:
        goal = given(self.objective)
        head = f"{goal.value:.7g} {goal.unit} at {rate}"
        if self.status == "optimal":
            return f"{head}, proven least{goal.among} in {self.seconds:.3g} s."
        far = (
            f"; the least may be up to {goal.gap:.2%} lower (bound {goal.bound:.7g})"
            if goal.bound
            else ""
        )
        return f"{head}, not proven least{goal.among}{why}{far}."

    @property
    def _remark(self) -> str:
        return f" {self.reason[0].upper()}{self.reason[1:]}." if self.reason else ""

    def as_dict(self) -> dict:
        """Plain data for JSON, numbers unrounded.

        Returns
        -------
        dict
            The attributes, with units in the names where these have any; the placement as
            `Placement.as_dict` has it.
        """
        return {
            "problem": self.problem.name,
            "method": self.method,
            "status": self.status,
            "throughput_tokens_per_s": self.throughput,
            "bound_tokens_per_s": self.bound,
            "gap": self.gap,
            "stopped_by": self.stopped_by,
            "reason": self.reason,
            "seconds": self.seconds,
            "link_units": self.problem.link_units,
            "solver": self.solver,
            "size": dict(self.size),
            "placement": self.placement.as_dict() if self.placement else None,
            "bottlenecks": list(self.evaluation.bottlenecks) if self.evaluation else [],
        } | ({"objective": self.objective.as_dict()} if self.objective else {})

    def save(self, path: str | Path) -> Path:
        """Write the placement as JSON or CSV, as `pl.save_placement` does.

        Parameters
        ----------
        path : str or Path
            Ends in `.json` or `.csv`.

        Returns
        -------
        Path
            Where it was written.

        Raises
        ------
        InvalidValue
            There is no placement, or the name ends in something else.
        InvalidData
            Nothing can be written there.
        """
        from pipelab.io.placements import save_placement

        return save_placement(self.problem, self, path)

    def frame(self) -> "DataFrame":
        """The answer as a table of one row.

        Returns
        -------
        pandas.DataFrame
            `problem`, `method`, `status`, `throughput_tokens_per_s`, `bound_tokens_per_s`, `gap`,
            `seconds`, the objective if it is another, and `size`.
        """
        import pandas as pd

        row = {
            "problem": self.problem.name,
            "method": self.method,
            "status": self.status,
            "throughput_tokens_per_s": self.throughput,
            "bound_tokens_per_s": self.bound,
            "gap": self.gap,
            "seconds": round(self.seconds, 3),
        }
        goal = self.objective.as_dict() if self.objective else {}
        return pd.DataFrame([row | goal | dict(self.size)])

    def __str__(self) -> str:
        head = f"{self.problem.name}, {self.method}: {self.sentence}"
        return f"{head}\n{self.placement}" if self.placement else head

    def _repr_html_(self) -> str:
        name = f"<b>{escape(self.problem.name)}, {escape(self.method)}:</b>"
        html = (
            f"<p class='{NO_FORMULAS}'>{name} {ended(self, html=True)}: {escape(self.sentence)}</p>"
        )
        return html + (self.evaluation._repr_html_() if self.evaluation else "")


def placement_in(given: Any, what: str) -> Placement:
    """The placement that a reader gave, or that is in the result a reader gave.

    Raises
    ------
    InvalidValue
        It is neither, or a result without a placement, whose reason is repeated.
    """
    if isinstance(given, Result):
        if given.placement is None:
            raise InvalidValue(
                what,
                [("placement", given.status, f"expected a result that has one. {given.sentence}")],
            )
        return given.placement
    if not isinstance(given, Placement):
        expected = "expected a Placement, such as Placement.of([(4, (0, 1))]), or a Result"
        raise InvalidValue(what, [("placement", given, expected)])
    return given
