"""Answers, and what all share: a placement, a deployment, a schedule, a training step.

Each has a status, a value that was to be greatest or least, and a bound on the best; so how far it may be
from the best, why it ended and how that is said are written here once. `Result` is that of a placement.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.display import NO_FORMULAS, DataFrame, data_frame, ended, ending, number, rate
from pipelab.engine.objective_and_bound import Objective, status_and_bound
from pipelab.errors import InvalidValue
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import Frozen, given
from pipelab.hardware.serving_engines import load_engines
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pipelab.hardware.measurements import ExpectedRate

__all__ = ["CostOfRules", "PlanAnswer", "ProvenAnswer", "Result", "placement_in", "rated_result"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ProvenAnswer(Frozen, ABC):
    """An answer with its proof, or with how far from the best it may be.

    Attributes
    ----------
    status : str
        "optimal", "feasible", "infeasible" or "unknown".
    bound : float or None
        Nothing is better; None where nothing was proven.
    seconds : float
        From the call to the answer.
    size : mapping of str to int
        What was searched.
    solver : str
        Name and version; empty where none was called.
    reason : str
        Why there is none, or why its proof is missing.
    stopped_by : str or None
        What ended the search early.
    details : mapping
        What only this search has.
    """

    status: str
    bound: float | None = None
    seconds: float
    size: Mapping[str, int] = field(default_factory=dict)
    solver: str = ""
    reason: str = ""
    stopped_by: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    @abstractmethod
    def _goal(self) -> tuple[float | None, float | None, bool]:
        """Its value, the bound on that of the best, and whether the least is sought."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The answer in words."""

    @property
    def gap(self) -> float | None:
        """How much better the best may be, as a share of this answer.

        None without an answer or without a bound, and where the answer yields nothing.
        """
        value, bound, least = self._goal
        if value is None or bound is None or not math.isfinite(bound):
            return None
        if least:
            return max(0.0, 1 - bound / value) if value else 0.0
        return max(0.0, bound / value - 1) if value else None

    @property
    def _end(self) -> dict[str, Any]:
        """How the search ended, as `to_dict` has it."""
        names = ("gap", "stopped_by", "reason", "seconds", "solver")
        return {name: getattr(self, name) for name in names}

    @property
    def _why(self) -> str:
        """Why it ended before its proof, in brackets."""
        return f" ({ending(self.stopped_by)})" if self.stopped_by else ""

    def _up_to(self, what: str, better: str) -> str:
        """Return how far from the best it may be; empty if nothing is known."""
        bound = self._goal[1]
        if self.gap is None or bound is None:
            return ""
        return f"{what} may be up to {self.gap:.2%} {better} (bound {number(bound)})"

    def _none_found(self, what: str, bound: str = "") -> str:
        """Return the sentence of an answer without one."""
        if self.status == "infeasible":
            return f"No {what} exists: {self.reason}."
        before = f" before the {self.stopped_by}" if self.stopped_by else ""
        return f"No {what} was found{before}{bound}." + self._remark

    @property
    def _remark(self) -> str:
        return f" {self.reason[0].upper()}{self.reason[1:]}." if self.reason else ""

    def _shown(self, title: str, below: str) -> str:
        """Return a title and the sentence as HTML, and what is shown below them."""
        head = f"<b>{escape(title)}:</b> {ended(self, html=True)}: {escape(self.sentence)}"
        return f"<p class='{NO_FORMULAS}'>{head}</p>{below}"


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanAnswer(ProvenAnswer):
    """An answer with plans: those that one engine can start, or any.

    Attributes
    ----------
    runs_on : str
        The engine whose plans the proof covers; empty: it covers all.
    any_engine : function or None
        Finds the best of all plans with the same options; None where no engine was named.
    objective : Objective or None
        What was minimised, if it was not throughput that was maximised; with its own bound.
    """

    problem: Problem
    throughput: float | None = None
    runs_on: str = ""
    any_engine: Callable[..., Any] | None = field(default=None, repr=False)
    objective: Objective | None = None

    @property
    def _timed_as(self) -> str:
        """Whose stage times the answer rests on, where an engine was named and the cost model has another one's."""
        timed, load = self.problem.costs.engine, self.problem.workload
        if not (self.runs_on and timed) or timed == self.runs_on or load.phase == "training":
            return ""
        known = self.runs_on in load_engines()
        remedy = f" (--rates {self.runs_on} or Roofline(engine={self.runs_on!r}) has these)"
        return f" Stage times are those of {timed}, not of {self.runs_on}{remedy if known else ''}."

    def cost_of_rules(self, **options: Any) -> "CostOfRules":
        """Solve once more for any engine, and compare: what the engine's rules cost.

        Parameters
        ----------
        **options
            In place of those of the first call, such as `time_limit`.

        Returns
        -------
        CostOfRules
            `share` of what is lost, `sentence`, and `free`, the best of all plans.

        Raises
        ------
        InvalidValue
            The answer was not found with `runs_on`.
        """
        if self.any_engine is None:
            expected = "expected an answer that was found with runs_on"
            raise InvalidValue("cost_of_rules", [("runs_on", self.runs_on, expected)])
        return CostOfRules(self, self.any_engine(**options))


class CostOfRules(NamedTuple):
    """What an engine's rules cost: the best plan that it can start, and the best of all.

    Attributes
    ----------
    kept, free : Result or Deployment
    """

    kept: PlanAnswer
    free: PlanAnswer

    @property
    def share(self) -> float | None:
        """How much worse the engine's best is than the best of all, as a share of it; None without both."""
        (value, _, least), (free, *_) = self.kept._goal, self.free._goal
        if not value or not free:
            return None
        return value / free - 1 if least else 1 - value / free

    @property
    def sentence(self) -> str:
        """The cost in words, and the best of all plans."""
        engine, share = self.kept.runs_on, self.share
        if share is None:
            return f"{engine}: {self.kept.sentence} Of all plans: {self.free.sentence}"
        text = f"{engine}'s rules cost {max(0.0, share):.1%} here"
        if {self.kept.status, self.free.status} != {"optimal"}:
            text += ", as far as is known"
        return f"{text}. Of all plans: {self.free.sentence}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Result(PlanAnswer):
    """What `solve` returns.

    Attributes
    ----------
    problem : Problem
        What was solved.
    method : str
        The method that answered: one of `solve`, or "latency" or "cost" for these objectives.
    status : str
        "optimal": proven, the bound equals the throughput (or the objective's value). "feasible": a
        placement without that proof. "infeasible": no placement exists, see `reason`. "unknown": no
        placement was found, and it is not proven that there is none.
    placement : Placement or None
        The answer; None where there is none.
    throughput : float or None
        What the placement attains as `evaluate` recomputes it, tokens/s; with `memory_for` its rate.
    bound : float or None
        No placement has more, tokens/s. None if the objective is another: see `objective`.
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
        What only this method has: build_seconds, nodes, progress, …
    objective : Objective or None
        What was minimised, if it was not throughput that was maximised; with its own bound.
    memory_for : int or None
        Microbatches in flight that memory was counted for, where the rate of a full pipeline was
        maximised (objective "rate") whatever number fills it.
    batches : tuple of int
        Batch sizes among which that of `problem` was chosen; empty if it was given.
    runs_on : str
        The engine whose plans the proof covers; empty: it covers all.
    any_engine : function or None
        Solves for all plans; see `cost_of_rules`.
    """

    method: str
    placement: Placement | None = None
    memory_for: int | None = None
    batches: tuple[int, ...] = ()

    @property
    def in_flight(self) -> int | None:
        """Microbatches in flight with which the placement attains its throughput.

        None without a placement, for the objective "rate", and where links are counted in transfers/s.
        """
        return self.evaluation.in_flight if self.evaluation and self.memory_for is None else None

    @property
    def under_limit(self) -> str:
        """What the placements have that the proof covers, such as "at most 3 GPUs"; empty if it covers all."""
        return self.details.get("under_limit", "")

    @property
    def _goal(self) -> tuple[float | None, float | None, bool]:
        if self.objective is not None:
            return self.objective.value, self.objective.bound, True
        return self.throughput, self.bound, False

    @property
    def _title(self) -> str:
        return f"{self.problem.name}, {self.method}"

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """Stages, links and bottleneck, recomputed from the raw data; None without a placement."""
        return evaluate(self.problem, self.placement) if self.placement else None

    @property
    def sentence(self) -> str:
        """The answer in one sentence, and a second one if links count transfers/s."""
        mistaken = self.problem.costs.link_units == "transfers" and len(self.problem.cluster) > 1
        words = " Links count transfers/s here, as in the write-up." if mistaken else ""
        return self._answer + words + (self._timed_as if self.placement else "")

    @property
    def _answer(self) -> str:
        goal = self.objective
        if self.status in ("infeasible", "unknown"):
            known = self.bound is not None and math.isfinite(self.bound)
            bound = f"; none can exceed {rate(given(self.bound))}" if known else ""
            if goal is not None and goal.bound and math.isfinite(goal.bound):
                bound = f"; none{self._among} has less than {number(goal.bound)} {goal.unit}"
            what = f"plan that {self.runs_on} can start" if self.runs_on else "placement"
            return self._none_found(what, bound)
        head, best = f"{rate(given(self.throughput))}{self._in_flight}", "optimal"
        far = "; the best", "faster"
        if goal is not None:
            head, best = f"{number(given(goal.value))} {goal.unit} at {head}", "least"
            far = "; the least", "lower"
        if self.status == "optimal":
            text = f"{head}, proven {best}{self._among} in {self.seconds:.3g} s."
        else:
            up_to = self._up_to(*far) if self._goal[1] else ""
            text = f"{head}, not proven {best}{self._among}{self._why}{up_to}."
        return text + self._remark

    @property
    def _among(self) -> str:
        """What the proof covers: plans, batches, limits; empty if it covers all with the problem's own batch."""
        floor, scope = (self.objective.floor, self.objective.scope) if self.objective else ("", "")
        limit = " and ".join(filter(None, (self.under_limit, floor)))
        plans = f" among plans that {self.runs_on} can start" if self.runs_on else ""
        batches = f" among batches of {', '.join(map(str, self.batches))}" if self.batches else ""
        limit = (f" of {limit}" if limit else "") + scope
        if limit:
            limit = f",{limit}" if self.runs_on else f" among placements{limit}"
        return plans + batches + limit

    @property
    def _in_flight(self) -> str:
        """With how many in flight; and whether memory keeps the placement from its rate."""
        if self.memory_for is not None:
            several = "microbatches" if self.memory_for > 1 else "microbatch"
            return f" as the rate of a full pipeline with memory for {self.memory_for} {several} in flight"
        batch = f" with a batch of {self.problem.workload.batch_size}" if self.batches else ""
        if self.in_flight is None:
            return batch
        evaluated = given(self.evaluation)
        text = f"{batch} and" if batch else " with"
        text += f" {self.in_flight} in flight"
        if evaluated.attainable < evaluated.rate * (1 - 1e-6):
            share = evaluated.attainable / evaluated.rate
            text += f" ({share:.1%} of its rate, which {evaluated.reached_by})"
        return text

    def to_dict(self) -> dict:
        """Return plain data for JSON, numbers unrounded.

        Returns
        -------
        dict
            The attributes, with units in the names where these have any; the placement as
            `Placement.to_dict` has it.
        """
        return {
            "problem": self.problem.name,
            "method": self.method,
            "status": self.status,
            "throughput_tokens_per_s": self.throughput,
            "in_flight": self.in_flight,
            "seconds_per_token": self.evaluation.seconds_per_token if self.evaluation else None,
            "bound_tokens_per_s": self.bound,
            **self._end,
            "size": dict(self.size),
            "link_units": self.problem.costs.link_units,
            "filling": self.problem.costs.filling,
            "placement": self.placement.to_dict() if self.placement else None,
            "bottlenecks": list(self.evaluation.bottlenecks) if self.evaluation else [],
        } | self._asked_for

    @property
    def _asked_for(self) -> dict:
        """What was asked for, if it was not the greatest throughput of all placements."""
        asked: dict[str, Any] = {"objective": self.objective.to_dict()} if self.objective else {}
        asked |= {"runs_on": self.runs_on} if self.runs_on else {}
        return asked | ({"under_limit": self.under_limit} if self.under_limit else {})

    def to_frame(self) -> DataFrame:
        """Return the answer as a table of one row.

        Returns
        -------
        pandas.DataFrame
            `problem`, `method`, `status`, `throughput_tokens_per_s`, `in_flight`,
            `bound_tokens_per_s`, `gap`, `seconds`, the objective if it is another, and `size`.
        """
        said, rates = self.to_dict(), ("throughput_tokens_per_s", "in_flight", "bound_tokens_per_s")
        row = {name: said[name] for name in ("problem", "method", "status", *rates, "gap")}
        row["seconds"] = round(self.seconds, 3)
        goal = self.objective.to_dict() if self.objective else {}
        return data_frame([row | goal | dict(self.size)])

    @property
    def doubt(self) -> str:
        """Why the rate may be far off, where nothing measured is like it; else empty."""
        return "" if self._expected is None else self._expected.doubt

    @property
    def _expected(self) -> "ExpectedRate | None":
        from pipelab.hardware.measurements import expected_rate

        return expected_rate(self.problem, self.evaluation) if self.evaluation else None

    def __str__(self) -> str:
        head = f"{self._title}: {self.sentence}"
        return "\n".join(filter(None, (head, self.doubt, str(self.placement or ""))))

    def _repr_html_(self) -> str:
        expected = self._expected
        html = "" if expected is None else f"<p class='{NO_FORMULAS}'>{expected.html}</p>"
        stages = self.evaluation._repr_html_() if self.evaluation else ""
        return self._shown(self._title, html + stages)


def rated_result(
    problem: Problem,
    method: str,
    placement: Placement | None,
    bound: float | None,
    *,
    stopped_by: str | None = None,
    **more: Any,
) -> Result:
    """Return the result of a placement and a bound on all rates, which decide its status.

    Parameters
    ----------
    stopped_by : str, optional
        What ended the search early, if its answer is not proven.
    **more
        Other attributes of the result.
    """
    throughput = None if placement is None else evaluate(problem, placement).rate
    status, bound = status_and_bound(throughput, bound)
    return Result(
        problem=problem,
        method=method,
        status=status,
        placement=placement,
        throughput=throughput,
        bound=bound,
        stopped_by=None if status == "optimal" else stopped_by,
        **more,
    )


def placement_in(given: Any, what: str) -> Placement:
    """Return the placement that a reader gave, or that is in the result a reader gave.

    Raises
    ------
    InvalidValue
        It is neither, or a result without a placement, whose reason is repeated.
    """
    if hasattr(given, "sentence") and hasattr(given, "placement"):  # a result of any objective
        if given.placement is None:
            expected = f"expected a result that has one. {given.sentence}"
            raise InvalidValue(what, [("placement", given.status, expected)])
        return given.placement
    if not isinstance(given, Placement):
        expected = "expected a Placement, such as Placement.of([(4, (0, 1))]), or a Result"
        if hasattr(given, "pipelines"):
            expected += "; of a deployment one of its pipelines: x.pipelines[0].placement"
        raise InvalidValue(what, [("placement", given, expected)])
    return given
