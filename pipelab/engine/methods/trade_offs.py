"""The whole trade-off in one call: throughput against GPUs, dollars per hour or per token, or time per pass."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pipelab.costs import refuse_transfers
from pipelab.display import DataFrame, data_frame, table
from pipelab.engine import arguments
from pipelab.engine.answers import Result
from pipelab.engine.arguments import refuse_training
from pipelab.engine.curve import Curve
from pipelab.engine.deadline import deadline_of
from pipelab.engine.deployments.deploying import Batches, Milliseconds
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.deployments.trade_off import deployments_against, requests_against
from pipelab.engine.in_flight import Budget, InFlightSearch
from pipelab.engine.methods.fronts import raise_floor
from pipelab.engine.prices import price_per_hour, refuse_unpriced
from pipelab.engine.solvers import choice
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER
from pipelab.errors import InvalidValue, refuse_unknown
from pipelab.fields import Flag, Frozen, checked_arguments, described, given
from pipelab.problem import Problem

_AGAINST = {"gpus": "gpus", "usd_per_hour": "price"}
_TPOT = "tpot_ms"
_LEAST = {"usd_per_million_tokens": "cost", "seconds_per_pass": "latency"}


@dataclass(frozen=True, eq=False, kw_only=True)
class TradeOff(Frozen):
    """Placements none of which is beaten in both throughput and what it costs.

    Attributes
    ----------
    against : "gpus", "usd_per_hour", "usd_per_million_tokens", "seconds_per_pass" or "tpot_ms"
    points : tuple of Result, or of Deployment
        Fastest first. One with status "optimal" is proven: nothing as cheap is faster, nothing as
        fast is cheaper. One with "feasible" (against seconds or dollars per token) was found, and
        not proven.
        Against GPUs or dollars per hour, status and bound hold from the second point on for
        placements cheaper than the point before (`Result.under_limit`); otherwise for placements above a floor
        of throughput (`objective`).
    complete : bool
        False where time ran out, it was stopped or a proof stayed open: points are missing or not
        proven.
    """

    problem: Problem
    against: str
    points: tuple[Result | Deployment, ...]
    complete: bool
    seconds: float

    def to_frame(self) -> DataFrame:
        """Return one row per point: GPUs, price, throughput, stages, bottleneck, whether it is proven, placement.

        Of deployments the number of pipelines and the gap in place of stages and bottleneck.
        """
        frame = data_frame([_row(self.problem, point) for point in self.points])
        if self.points and frame["usd_per_hour"].notna().any():
            return frame
        return frame.drop(columns="usd_per_hour", errors="ignore")

    def _repr_html_(self) -> str:
        return table(self.to_frame().drop(columns="placement", errors="ignore"))


def _row(problem: Problem, point: Result | Deployment) -> dict[str, Any]:
    """Return a point as a row of the table."""
    if isinstance(point, Result):
        r, placement = point, given(point.placement)
        return ({r.objective.name: r.objective.value} if r.objective else {}) | {
            "gpus": len(placement.gpus),
            "usd_per_hour": price_per_hour(problem, placement),
            "throughput_tokens_per_s": r.throughput,
            "stages": len(placement),
            "bottleneck": ", ".join(given(r.evaluation).bottlenecks[:2]),
            "proven": r.status == "optimal",
            "placement": str(placement),
        }
    served = {} if point.slowest is None else {"requests_per_s": point.requests_per_s}
    if point.slowest is not None:
        served |= {"tpot_ms": point.slowest.tpot_ms, "ttft_ms": point.slowest.ttft_ms}
    return served | {
        "gpus": sum(len(replica.gpus) for p in point.pipelines for replica in p.replicas),
        "usd_per_hour": point.usd_per_hour,
        "throughput_tokens_per_s": point.throughput,
        "pipelines": point.count,
        "gap": point.gap,
        "proven": point.status == "optimal",
        "placement": " → ".join(f"{p.count} × ({p.placement})" for p in point.pipelines),
    }


@checked_arguments
def trade_off(
    problem: arguments.AskedProblem,
    against: str = "gpus",
    *,
    deployments: Flag = False,
    batches: Batches = None,
    ttft_ms: Milliseconds = None,
    tpot_ms: Milliseconds = None,
    pools: Flag = False,
    time_limit: arguments.TimeLimit = None,
    stop: arguments.Stop = None,
    on_point: Annotated[Callable | None, described("a function of a Result, or None")] = None,
) -> TradeOff:
    """Find every best compromise between throughput and what it costs: GPUs, dollars, or the time of a pass.

    Against GPUs or dollars per hour it starts at the fastest placement, then asks for the fastest
    that is cheaper, and so on until none is left. Against dollars per million tokens or seconds per
    pass it starts at the least there is, then raises the floor of throughput to the next possible
    rate, and so on.

    Parameters
    ----------
    problem : Problem
        What is to be placed on what.
    against : {"gpus", "usd_per_hour", "usd_per_million_tokens", "seconds_per_pass", "tpot_ms"}
        Dollars need `GPU.usd_per_hour` for every GPU, seconds `link_units="tokens"`.
    deployments : bool
        True: the points are deployments (`pl.deploy`), against GPUs or dollars per hour.
    batches, ttft_ms, tpot_ms, pools : as of `deploy`
        Of deployments that serve requests (`pl.deploy`): requests/s against dollars per hour within the
        limits, or against TPOT. `math.inf` is no limit, and counts requests.
    time_limit : float, optional
        Seconds; what was found by then is kept, with status "feasible" where no proof is, and
        `complete` says so.
    stop : threading.Event or function of Progress, optional
        Set it to end the search, or return True, with the same effect: `nodes` are those of all points.
    on_point : function of Result, optional
        Called with every point as it is proven.

    Returns
    -------
    TradeOff
        Its `points` are Results (or Deployments), the fastest first; `to_frame()` has them as a table, `pl.plot` as a
        curve.

    Raises
    ------
    InvalidValue
        Prices are missing, links are counted in transfers/s, or an argument is of another kind.
    UnknownName
        `against` is unknown.
    TooLarge
        Too many mixtures of too many kinds of GPU, where mixtures must be listed; or too many mixes
        for deployments against GPUs.

    Notes
    -----
    Of deployments on small clusters (50,000 mixes of GPUs) every point is proven at once. On larger
    ones, and of those that serve requests, the points are the cheapest deployments for 12 loads, each proven
    or with its gap, and `complete` is False, as there may be others between them. Against "tpot_ms" every point
    is the most requests/s within a limit, 0.7 times what the one before takes.

    Examples
    --------
    >>> import pipelab as pl
    >>> curve = pl.trade_off(pl.load_case("tiny", max_gpus_per_stage=4))
    >>> [(len(p.placement.gpus), round(p.throughput, 3)) for p in curve.points]
    [(4, 345.494), (2, 301.784), (1, 217.52)]
    """
    refuse_unknown("curve against", against, (*_AGAINST, *_LEAST, _TPOT))
    refuse_training(problem, "trade_off")
    asked = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "pools": pools}
    requests = against == _TPOT or any(asked.values())
    if requests and (not deployments or against not in ("usd_per_hour", _TPOT)):
        expected = "expected deployments=True and against='usd_per_hour' or 'tpot_ms', for requests"
        raise InvalidValue("trade_off", [("against", against, expected)])
    if not requests and deployments and against not in _AGAINST:
        expected = f"expected {' or '.join(map(repr, _AGAINST))} where points are deployments"
        raise InvalidValue("trade_off", [("against", against, expected)])
    if against == "seconds_per_pass" and len(problem.cluster) > 1:
        refuse_transfers("trade_off", problem.costs.link_units)
    if against.startswith("usd"):
        refuse_unpriced(problem, "trade_off")
    with deadline_of(time_limit, stop) as deadline:
        curve = Curve(on_point)
        if requests:
            requests_against(problem, against, {**asked, "batches": batches}, curve, deadline)
        elif deployments:
            deployments_against(problem, against, curve, deadline)
        else:
            pairs = InFlightSearch(problem, deadline)
            find = raise_floor if against in _LEAST else _most_first
            what = (_AGAINST | _LEAST)[against]
            curve = _OfFullPipelines(on_point, pairs=pairs)
            if against != "seconds_per_pass":
                find(pairs.full_pipelines(), what, curve)
            if against == "seconds_per_pass" or not (curve.all_attain or deadline.reason):
                curve = Curve(on_point)
                find(pairs, what, curve)
        points = curve.points[::-1] if against in _LEAST else curve.points
        return TradeOff(
            problem=problem,
            against=against,
            points=tuple(points),
            complete=curve.complete,
            seconds=deadline.spent,
        )


@dataclass
class _OfFullPipelines(Curve):
    """The points of full pipelines that attain their rates; told as long as all do."""

    pairs: InFlightSearch = field(kw_only=True)
    all_attain: bool = True

    def add(self, point: Any, told: bool = True) -> None:
        """Take the next point as one of the problem itself, if it attains its rate."""
        if self.pairs.yields(point.placement) >= point.throughput * (1 - ONE_ANSWER):
            super().add(replace(point, problem=self.pairs.problem), told and self.all_attain)
        else:
            self.all_attain = self.complete = False


def _most_first(pairs: InFlightSearch, what: str, curve: Curve) -> None:
    """Add the points against "gpus" or "price": the most, its least use, less than that."""
    details = dict[str, Any]()
    while True:
        most, stopped = pairs.greatest()
        if pairs.best is None:
            curve.complete &= stopped is None
            return
        proven = most <= pairs.attained * (1 + ATTAINED)
        placement, least, ended, *_ = pairs.least(what, pairs.attained * (1 - ATTAINED / 2))
        placement = placement or pairs.best
        uses = pairs.uses(placement, what)
        proven &= least >= uses * (1 - ATTAINED)
        rate = pairs.yields(placement)
        point = Result(
            problem=pairs.problem,
            method="aggregated",
            status="optimal" if proven else "feasible",
            placement=placement,
            throughput=rate,
            bound=rate if proven else most,
            seconds=pairs.deadline.spent,
            solver=choice.solver_version(),
            stopped_by=None if proven else stopped or ended,
            details=details,
        )
        curve.add(point)
        if pairs.deadline.reason is not None:
            curve.complete = False
            return
        # a price that is the same but for its last bits is no lower
        less, under = uses * (1 - ONE_ANSWER), "a lower price than the point before"
        if what == "gpus":
            less, under = uses - 1, f"at most {uses - 1:.0f} GPUs"
        details = {"under_limit": under}
        pairs = pairs.under(Budget(what, less))
