"""What `deploy` returns: pipelines on disjoint GPUs, how good they are together, and how far from the best."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from pipelab.deployment_and_flow import DeploymentPlan, Replicas
from pipelab.display import NO_FORMULAS, DataFrame, data_frame, number, rate, table
from pipelab.engine.answers import PlanAnswer
from pipelab.engine.deadline import Stop, apart, deadline_of
from pipelab.engine.prices import price_per_hour
from pipelab.errors import InvalidValue
from pipelab.evaluation import DeploymentEvaluation, evaluate, tally
from pipelab.fields import given
from pipelab.requests import Limits, Service


@dataclass(frozen=True, kw_only=True)
class Pipeline(Replicas):
    """Pipelines with the same stages on GPUs that are interchangeable.

    Attributes
    ----------
    replicas : tuple of Placement
        One for each pipeline.
    workload : Workload
        With the batch that each of them works on,
        and the number in flight with which it attains its throughput.
    throughput : float
        What each attains, in tokens/s.
    service : Service or None
        What each does for requests, where these are served.
    """

    throughput: float
    service: Service | None = None


def requests_served(pipelines: Sequence[Pipeline], pools: Iterable[str]) -> float:
    """Return requests/s of the pool that serves fewest."""
    rates = dict.fromkeys(pools, 0.0)
    for pipeline in pipelines:
        rates[pipeline.workload.phase] += pipeline.count * given(pipeline.service).requests_per_s
    return min(rates.values())


@dataclass(frozen=True, eq=False, kw_only=True)
class Deployment(PlanAnswer, DeploymentPlan):
    """Pipelines on disjoint GPUs: what `deploy` returns.

    Attributes
    ----------
    problem : Problem
        The cluster and the model that they use.
    status : str
        "optimal": proven, no deployment is better. "feasible": a deployment without that proof.
        "infeasible": there is none, see `reason`. "unknown": none was found, and it is not proven
        that there is none.
    pipelines : tuple of Pipeline
        The fastest first; empty where there is none.
    throughput : float or None
        Of all together as `evaluate` recomputes it, tokens/s; where requests are served, tokens of their
        answers.
    bound : float or None
        No deployment has more tokens/s, or requests/s where these are served; with a load, none that serves
        it costs fewer dollars per hour. None where nothing was proven.
    at_least : float
        The load to be served at the least price, in tokens/s or requests/s; 0 where throughput is the goal.
    seconds : float
        From the call to the answer.
    size : mapping of str to int
        Classes of GPUs, columns (pipelines considered), rounds.
    solver : str
        Name and version.
    reason : str
        Why there is no deployment, or why its proof is missing.
    stopped_by : str or None
        "time limit", "gap limit", "stop", "interrupt", … where it ended early.
    details : mapping
        `progress`: incumbent and bound, round by round. `bounds`: what no deployment beats, by what proves it
        ("work of stages", "prices of pipelines", "mixes of GPUs", "lists of pipelines", "single pipelines").
        `dual_prices`: by type, what the relaxation says that one more GPU brings, in tokens/s.
    again : function or None
        `deploy` with the same batches, for a problem and a load.
    runs_on : str
        The engine whose plans the proof covers; empty: it covers all.
    any_engine : function or None
        Finds the best deployment of all plans; see `cost_of_rules`.
    limits : Limits or None
        Those that requests have, where they are served; those that were not given are infinite.
    single : bool
        The proof covers pipelines alone.
    objective : Objective or None
        With `within` and without a load: the percent lost at most, in place of throughput.
    """

    pipelines: tuple[Pipeline, ...]
    at_least: float
    again: "Callable[..., Deployment] | None" = field(default=None, repr=False)
    limits: Limits | None = None
    single: bool = False

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs in use; None where one of them has none."""
        return price_per_hour(self.problem, *(r for p in self.pipelines for r in p.replicas))

    @property
    def requests_per_s(self) -> float | None:
        """Requests served, where the workload says how many tokens each has; None without a deployment.

        In the phase "mixed" a request is a prompt of `sequence_length` tokens and an answer of
        `output_tokens`; in prefill it is the prompt. In decode alone requests have no length.
        """
        load = self.problem.workload
        if self.limits is not None and self.pipelines:
            return requests_served(
                self.pipelines, dict.fromkeys(p.workload.phase for p in self.pipelines)
            )
        if self.throughput is None or load.phase == "decode":
            return None
        return self.throughput / (load.sequence_length if load.phase == "prefill" else load.written)

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Dollars per million tokens, of prompts and answers; None without a price.

        In the phase "mixed" every request's prompt counts too: its GPUs read it and were paid for it.
        """
        dollars, load = self.usd_per_hour, self.problem.workload
        if dollars is None or not self.throughput:
            return None
        tokens = self.throughput * load.tokens_passed / load.tokens
        if self.limits is not None:
            tokens = given(self.requests_per_s) * (load.sequence_length + (load.output_tokens or 0))
        return dollars / (3600 * tokens) * 1_000_000

    @property
    def value(self) -> float | None:
        """What was to be best: tokens/s or requests/s, or with a load dollars per hour; None without a deployment."""
        if self.throughput is None:
            return None
        if self.at_least:
            return self.usd_per_hour
        return self.throughput if self.limits is None else self.requests_per_s

    @property
    def _goal(self) -> tuple[float | None, float | None, bool]:
        if self.objective is not None:
            return self.objective.value, self.objective.bound, True
        return self.value, self.bound, bool(self.at_least)

    @property
    def evaluation(self) -> DeploymentEvaluation | None:
        """Every pipeline, recomputed from the raw data; None without a deployment."""
        return evaluate(self.problem, self) if self.pipelines else None

    @property
    def sentence(self) -> str:
        """The answer in one or two sentences."""
        if self.status in ("infeasible", "unknown"):
            plans = f" of plans that {self.runs_on} can start" if self.runs_on else ""
            return self._none_found(f"deployment{plans}")
        noun = "pipeline" if self.count == 1 else "pipelines"
        text, unit, among = f"{self.count} {noun}, {rate(given(self.throughput))}", "tokens/s", ""
        if self.limits is not None:
            text, unit = f"{self.count} {noun}, {self._promise}", "requests/s"
            among = " within these limits" if min(self.limits[:2]) < math.inf else ""
        if self.at_least:
            text = f"{number(given(self.value))} $ per hour: {text}"
            among = f" to serve {self.at_least:.7g} {unit}{among}"
        if self.objective is not None:
            text = f"{number(given(self.objective.value))} {self.objective.unit} at {text}"
        if self.status == "optimal":
            among = f" of plans that {self.runs_on} can start{among}" if self.runs_on else among
            best = "cheapest" if self.at_least else "least" if self.objective else "optimal"
            what = "single pipelines" if self.single else "deployments"
            text = f"{text}, proven {best} among all {what}{among} in {self.seconds:.3g} s."
            return text + self._remark + self._beyond_links + self._timed_as
        bounds: Mapping[str, float] = {} if self.objective else self.details.get("bounds", {})
        tightest = (max if self.at_least else min)(
            bounds, key=lambda name: bounds[name], default=""
        )
        by = f"by {tightest} " if tightest else ""
        better = "cheaper" if self.at_least else "lower" if self.objective else "faster"
        far = self._up_to(f"; {by}the {'least' if self.objective else 'best'}", better)
        remarks = self._remark + self._beyond_links + self._timed_as
        return f"{text}, not proven best{self._why}{far}." + remarks

    @property
    def _beyond_links(self) -> str:
        """Say that a flow may be better, where a link is the bottleneck."""
        most = self.details.get("gpus_alone")
        if most is None or self.runs_on:
            return ""
        return (
            f" A link is the bottleneck, and the GPUs alone would let up to {number(most)} tokens/s pass: in a flow"
            " several stages share what crosses such a link, so `pl.flow` may find more."
        )

    @property
    def slowest(self) -> Limits | None:
        """The longest times that any pipeline takes, as limits that it would just keep; None without requests.

        0 where no pipeline has a phase with such a time.
        """
        limits, served = self.limits, [p.service for p in self.pipelines if p.service]
        if limits is None or not served:
            return None
        tpot_ms = 1000 * max(max(s.tpot_s, s.last_tpot_s) for s in served)
        return Limits(1000 * max(s.ttft_s for s in served), tpot_ms)

    @property
    def _promise(self) -> str:
        """Requests/s, and the longest times of any pipeline."""
        limits, slowest = given(self.limits), given(self.slowest)
        said = [
            f"{name} up to {ms:.4g} ms" + (f" of {limit:.4g}" if limit < math.inf else "")
            for name, ms, limit in zip(("TTFT", "TPOT"), slowest, limits, strict=False)
            if ms
        ]
        return f"{number(given(self.requests_per_s))} requests/s ({', '.join(said)})"

    @property
    def doubt(self) -> str:
        """Why a pipeline's rate may be far off, where nothing measured is like it; else empty."""
        from pipelab.hardware.measurements import expected_rate

        pipelines = self.evaluation.pipelines if self.evaluation else ()
        rates = (expected_rate(self.problem, pipeline) for pipeline in pipelines)
        return " ".join(dict.fromkeys(rate.doubt for rate in rates if rate and rate.doubt))

    def to_frame(self) -> DataFrame:
        """Return the pipelines as a table, one row for each sort.

        Returns
        -------
        pandas.DataFrame
            `pipelines` (how many), `gpus` (types of one of them), `stages`, `batch_size`,
            `in_flight`, `throughput_tokens_per_s` (of one), `layers` (of each stage). Where requests are
            served also `phase`, and of one pipeline `requests_per_s`, `tpot_ms` at the mean context and
            `last_tpot_ms` at the last token, and `ttft_ms`; 0 where a phase has none.
        """
        gpus = self.problem.cluster.gpus
        rows = [
            {
                "pipelines": p.count,
                "gpus": tally(tuple(gpus[g].type for g in p.placement.gpus)),
                "stages": len(p.placement),
                "batch_size": p.workload.batch_size,
                "in_flight": p.workload.in_flight,
                "throughput_tokens_per_s": p.throughput,
                "layers": ", ".join(str(len(s.layers)) for s in p.placement.stages),
            }
            | self._served_by(p)
            for p in self.pipelines
        ]
        return data_frame(rows)

    def _served_by(self, pipeline: Pipeline) -> dict[str, Any]:
        """Return what a pipeline does for requests, by name; empty where tokens count."""
        served, limits = pipeline.service, self.limits
        if served is None or limits is None:
            return {}
        return {
            "phase": pipeline.workload.phase,
            "requests_per_s": served.requests_per_s,
            "tpot_ms": 1000 * served.tpot_s,
            "last_tpot_ms": 1000 * served.last_tpot_s,
            "ttft_ms": 1000 * served.ttft_s,
        }

    def one_more(self, *, time_limit: float | None = None, stop: Stop = None) -> DataFrame:
        """Return what one more GPU of each type would bring, with the same workloads.

        Parameters
        ----------
        time_limit : float, optional
            Seconds for all types together, shared out evenly.
        stop : threading.Event or function of Progress, optional
            Set it to end the search, or return True.

        Returns
        -------
        pandas.DataFrame
            One row per type. `throughput_after_tokens_per_s`, `gain_tokens_per_s`, and beside it
            `dual_price_tokens_per_s`: what the relaxation of the present problem says of it, which no
            pipeline need attain. `usd_per_hour` of the GPU, `gain_per_usd_per_hour`, and whether both
            deployments are `proven`. With a load `usd_per_hour_after` and `saves_usd_per_hour`
            instead. Without a price, None.

        Raises
        ------
        InvalidValue
            The deployment was put together by hand.

        Notes
        -----
        The new GPU has the memory, price, node and links of the first of its type.

        Examples
        --------
        >>> import pipelab as pl
        >>> gpus = pl.Cluster.from_counts({"A100": 1, "T4": 2}, {"A100": 40, "T4": 16}, 12.5)
        >>> case = pl.load_case("tiny")
        >>> problem = pl.Problem(gpus, case.model, case.workload, case.costs)
        >>> pl.deploy(problem).one_more()[["type", "gain_tokens_per_s"]].round(3).values.tolist()
        [['A100', 217.52], ['T4', 66.96]]
        """
        if self.again is None:
            expected = "expected a deployment that `pl.deploy` returned"
            raise InvalidValue("one_more", [("deployment", self.problem.name, expected)])
        counts = Counter(gpu.type for gpu in self.problem.cluster.gpus)
        with deadline_of(time_limit, stop) as deadline:
            rows = []
            for i, kind in enumerate(counts):
                left = deadline.share(len(counts) - i)
                rows.append(_marginal_gpu(self, counts, kind, left, apart(deadline.stop)))
        return data_frame(rows)

    def to_dict(self) -> dict:
        """Return plain data for JSON, numbers unrounded.

        Returns
        -------
        dict
            The attributes, with units in the names where these have any; each replica as
            `Placement.to_dict` has it.
        """
        unit, requests = "tokens_per_s", {}
        if self.limits is not None:
            limits = self.limits._asdict().items()
            requests = {name: None if ms == math.inf else ms for name, ms in limits}
            unit, requests["requests_per_s"] = "requests_per_s", self.requests_per_s
        return {
            "problem": self.problem.name,
            "status": self.status,
            "throughput_tokens_per_s": self.throughput,
            "usd_per_hour": self.usd_per_hour if self.pipelines else None,
            f"at_least_{unit}": self.at_least,
            **(self.objective.to_dict() if self.objective else {}),
            "bound_usd_per_hour" if self.at_least else f"bound_{unit}": self.bound,
            **requests,
            **self._end,
            "size": dict(self.size),
            "pipelines": [
                {
                    "batch_size": p.workload.batch_size,
                    "in_flight": p.workload.in_flight,
                    "throughput_tokens_per_s": p.throughput,
                    **self._served_by(p),
                    "replicas": [replica.to_dict() for replica in p.replicas],
                }
                for p in self.pipelines
            ],
        }

    def __str__(self) -> str:
        rows = [f"{p.count} × {rate(p.throughput)}: {p.placement}" for p in self.pipelines]
        head = [f"{self.problem.name}: {self.sentence}", *filter(None, [self.doubt])]
        return "\n".join([*head, *rows])

    def _repr_html_(self) -> str:
        doubt = f"<p class='{NO_FORMULAS}'>{escape(self.doubt)}</p>" if self.doubt else ""
        below = doubt + (table(self.to_frame()) if self.pipelines else "")
        return self._shown(self.problem.name, below)


def _marginal_gpu(
    before: Deployment,
    counts: Mapping[str, int],
    kind: str,
    time_limit: float | None,
    stop: Stop,
) -> dict[str, Any]:
    """Return a row of `Deployment.one_more`."""
    problem = before.problem
    cluster = problem.cluster.with_counts({**counts, kind: counts[kind] + 1})
    added = next(gpu for gpu in problem.cluster.gpus if gpu.type == kind)
    more = replace(problem, cluster=cluster)
    after = given(before.again)(more, before.at_least, time_limit=time_limit, stop=stop)
    price, proven = added.usd_per_hour, {"optimal", "infeasible"}
    row: dict[str, Any] = {"type": kind}
    if before.at_least:
        saved = None
        if before.value is not None and after.value is not None:
            saved = before.value - after.value
        row |= {
            "usd_per_hour_after": after.value,
            "saves_usd_per_hour": saved,
            "usd_per_hour": price,
        }
    else:
        gain = (after.throughput or 0.0) - (before.throughput or 0.0)
        row |= {
            "throughput_after_tokens_per_s": after.throughput,
            "gain_tokens_per_s": gain,
            "dual_price_tokens_per_s": before.details.get("dual_prices", {}).get(kind),
            "usd_per_hour": price,
            "gain_per_usd_per_hour": gain / price if price else None,
        }
    return row | {"proven": {before.status, after.status} <= proven}
