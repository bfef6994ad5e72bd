"""What a full pipeline yields with so many microbatches in flight, and the highest rate that memory allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import inf, isinf
from typing import TYPE_CHECKING, NamedTuple

from pipelab.display import NO_FORMULAS, ended, ending, table
from pipelab.engine.tolerances import ONE_ANSWER, SOLVER
from pipelab.errors import InvalidValue
from pipelab.evaluation import Evaluation, evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.engine.timeline import PlacedTimeline, TrainingTimeline


def steady_rate(evaluation: Evaluation, in_flight: int) -> float:
    """Tokens/s of the full pipeline: no more than the slowest lane's rate, nor than `in_flight` passes at a time.

    What `PlacedTimeline.steady_rate` measures in a simulation.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> evaluation = pl.evaluate(tiny, pl.Placement.of([(2, (0,)), (2, (2,))]))
    >>> [round(steady_rate(evaluation, n), 4) for n in (1, 2, 3)]
    [82.5629, 134.616, 134.616]
    """
    return min(evaluation.throughput, in_flight * evaluation.tokens / evaluation.seconds_per_pass)


def enough_in_flight(evaluation: Evaluation) -> int:
    """The fewest in flight with which the steady rate is the throughput (to one part in 10^9)."""
    passes = evaluation.throughput * evaluation.seconds_per_pass / evaluation.tokens
    return max(1, -int(-(passes * (1 - ONE_ANSWER)) // 1))


_COLUMNS = (
    "in_flight_from",
    "in_flight_to",
    "solved_for",
    "bound_tokens_per_s",
    "best_tokens_per_s",
)


class Round(NamedTuple):
    """One subproblem: the rate that no pair exceeds whose number in flight is from `first` to `last`."""

    first: int
    last: float  # infinite: any number from `first` on
    solved_for: str  # "throughput", "end-to-end latency", or "both", which is exact
    bound: float  # tokens/s
    best: float  # tokens/s of the best pair by then; 0 without one

    def to_dict(self) -> dict:
        """Plain data for JSON; None for what is infinite."""
        return {k: None if v == inf else v for k, v in zip(_COLUMNS, self, strict=True)}


@dataclass(frozen=True, eq=False)
class InFlightResult:
    """What `pl.solve(problem, objective="throughput_in_flight")` returns.

    Attributes
    ----------
    problem : Problem
        As given, with `Workload.in_flight` as found; as given where nothing was found.
    status : str
        "optimal": proven over all placements and numbers in flight with the problem's batch size.
        "feasible": a placement without that proof. "infeasible": nothing fits even with one in
        flight, see `reason`. "unknown": ended before any was found.
    placement : Placement or None
        The answer; None where there is none.
    in_flight : int or None
        Microbatches in flight: memory holds so many, and they yield `steady_rate`.
    steady_rate : float or None
        Of the full pipeline, tokens/s.
    bound : float or None
        No placement yields more, whatever the number in flight, tokens/s; None where nothing was
        proven.
    seconds : float
        From the call to the answer.
    rounds : tuple of Round
        Every subproblem solved, in order.
    reason, stopped_by
        As of a `Result`.
    """

    problem: Problem
    status: str
    placement: Placement | None
    in_flight: int | None
    steady_rate: float | None
    bound: float | None
    seconds: float
    rounds: Sequence[Round] = ()
    reason: str = ""
    stopped_by: str | None = None

    @property
    def gap(self) -> float | None:
        """By how much the best may be faster, as a share of `steady_rate`; None without a placement or a bound."""
        if self.steady_rate is None or self.bound is None:
            return None
        return max(0.0, self.bound / self.steady_rate - 1)

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """Stages, links and bottleneck, recomputed from the raw data; None without a placement."""
        return evaluate(self.problem, self.placement) if self.placement else None

    def timeline(self, microbatches: int | None = None) -> "PlacedTimeline | TrainingTimeline":
        """The pipeline with so many in flight, simulated.

        Parameters
        ----------
        microbatches : int, optional
            Passes to show: by default three times as many as are in flight.

        Returns
        -------
        PlacedTimeline
            See `timeline_of`.

        Raises
        ------
        InvalidValue
            There is no placement, or the number is not a positive whole number.
        TooLarge
            So many passes are more than 5 million actions.
        """
        from pipelab.engine.timeline import timeline_of

        if self.placement is None:
            raise InvalidValue(
                "timeline", [("placement", self.status, f"expected one. {self.sentence}")]
            )
        return timeline_of(self.problem, self.placement, microbatches, self.in_flight)

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if self.status == "infeasible":
            return f"No placement exists: {self.reason}."
        why = f" before the {self.stopped_by}" if self.stopped_by else ""
        evaluation = self.evaluation
        if evaluation is None or self.in_flight is None or self.steady_rate is None:
            return f"No placement was found{why}{f'; none exceeds {self.bound:,.7g} tokens/s' if self.bound else ''}."
        several = "microbatches" if self.in_flight > 1 else "microbatch"
        text = f"{self.steady_rate:,.7g} tokens/s with {self.in_flight} {several} in flight, all of which fit"
        if self.steady_rate < evaluation.throughput * (1 - SOLVER):
            share, enough = self.steady_rate / evaluation.throughput, enough_in_flight(evaluation)
            text += f" ({share:.1%} of what {enough} would yield)"
        if self.status == "optimal":
            return f"{text}; proven the highest{self._among}, in {self.seconds:.3g} s."
        far = (
            f"; there may be up to {self.gap:.2%} more (bound {self.bound:,.7g})"
            if self.bound
            else ""
        )
        why = f" ({ending(self.stopped_by)})" if self.stopped_by else ""
        return f"{text}, not proven the highest{self._among}{why}{far}."

    @property
    def _among(self) -> str:
        """What the answer is the most of: another batch size is another problem."""
        return f" of all placements and numbers in flight with a batch of {self.problem.workload.batch_size}"

    def to_dict(self) -> dict:
        """Plain data for JSON, numbers unrounded.

        Returns
        -------
        dict
            The attributes as `Result.to_dict` names them, with `in_flight` and
            `steady_rate_tokens_per_s`. `rounds` has a dict per subproblem; None stands for what is
            infinite: an `in_flight_to` without end, a bound where nothing was proven.
        """
        return {
            "problem": self.problem.name,
            "status": self.status,
            "in_flight": self.in_flight,
            "steady_rate_tokens_per_s": self.steady_rate,
            "bound_tokens_per_s": self.bound,
            "gap": self.gap,
            "stopped_by": self.stopped_by,
            "reason": self.reason,
            "seconds": self.seconds,
            "placement": self.placement.to_dict() if self.placement else None,
            "rounds": [one.to_dict() for one in self.rounds],
        }

    def to_frame(self) -> "DataFrame":
        """The subproblems as a table, one row each.

        Returns
        -------
        pandas.DataFrame
            Columns `in_flight_from`, `in_flight_to` ("…" where without end), `solved_for`,
            `bound_tokens_per_s` and `best_tokens_per_s`, of the best pair by then.
        """
        import pandas as pd

        frame = pd.DataFrame([one.to_dict() for one in self.rounds], columns=_COLUMNS)
        frame["in_flight_to"] = ["…" if isinf(one.last) else one.last for one in self.rounds]
        return frame

    def __str__(self) -> str:
        head = f"{self.problem.name}: {self.sentence}"
        return f"{head}\n{self.placement}" if self.placement else head

    def _repr_html_(self) -> str:
        name = f"<b>{escape(self.problem.name)}:</b>"
        html = (
            f"<p class='{NO_FORMULAS}'>{name} {ended(self, html=True)}: {escape(self.sentence)}</p>"
        )
        return html + (table(self.evaluation.to_frame()) if self.evaluation else "")
