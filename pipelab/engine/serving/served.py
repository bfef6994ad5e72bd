"""`serve`: requests through a plan, and what `Served` says of them."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from tqdm import tqdm

from pipelab import fields
from pipelab.display import NO_FORMULAS, DataFrame, counted, data_frame, number, table
from pipelab.engine import arguments
from pipelab.engine.answers import PlanAnswer
from pipelab.engine.runs_on import as_engine_fills
from pipelab.engine.serving.arrivals import Lengths, drawn, from_file, lengths
from pipelab.engine.serving.lines import Lines, lines_of
from pipelab.errors import InvalidValue
from pipelab.hardware.engine_rules import known_rules
from pipelab.problem import Problem, Workload
from pipelab.requests import Limits
from pipelab.serving import Request, Simulation, Visit, Work

PERCENTILES = (50, 90, 95, 99)
_GROUPS = 20  # of consecutive requests; their means are taken for independent
_SILENT_S = 2  # until progress is shown
_WARM_UP_SHARE = 0.25  # of those that count
_MOST_COME_SHARE = 8  # of those that count; at half of it warm-up ends, however few have ended
_FALLS_BEHIND_SHARE = 0.05  # of what comes, beyond three standard deviations of a Poisson number
_TRIED_REQUESTS = 300  # through batches of each size
_TRIED_HALVINGS = 6  # of an engine's batches
_NOTICED_SHARE = 0.05  # of the time until an answer is complete
# With a lower rate, times of thousands of requests lose digits.
_LeastRate = Annotated[fields.Positive, Ge(1e-6)]
_Rate = Annotated[_LeastRate | None, fields.described("a number of at least 0.000001, or None")]
_OfClients = Annotated[fields.Count, Le(10**6)]
_Clients = Annotated[_OfClients | None, fields.described("a whole number up to 1,000,000, or None")]
_Chunk = Annotated[fields.Count | None, fields.described("a whole number of at least 1, or None")]
_TIMES = {"waiting_ms": "until admitted", "ttft_ms": "first token", "tpot_ms": "token to token"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Sent(fields.Frozen):
    """What is sent through which plan: all that a simulation needs, so that it can be done again.

    Attributes
    ----------
    problem, plan, chunk, clients, rate, seed : as of `serve`
    rows : sequence of Request or None
        Of a file.
    number : int
        Requests that count.
    tokens : mapping of str to Lengths
        Of "prompt" and "answer".
    """

    problem: Problem
    plan: Any
    chunk: int | None
    rows: Sequence[Request] | None
    number: int
    rate: float | None
    clients: int | None
    tokens: Mapping[str, Lengths]
    seed: int

    @property
    def lines(self) -> Lines:
        """Pipelines, or ways of a flow, with the rules by which batches enter."""
        return lines_of(self.problem, self.plan, self.chunk)

    @property
    def most_come(self) -> int:
        """Requests after which nobody comes any more, where more come than end."""
        return sys.maxsize if self.rate is None else _MOST_COME_SHARE * self.number

    def simulation(self, lines: Lines, follow: int | None = None) -> Simulation:
        """Begin a simulation, in which the way of one request may be noted."""
        requests = drawn(self.rate, self.clients or 0, **self.tokens, seed=self.seed)
        come = self.rows or islice(requests, self.most_come)
        return Simulation(lines.lines, come, lines.takes_all, self.clients, follow)

    def __str__(self) -> str:
        who = f"{counted(self.number, 'request')} of a file"
        if self.rows is None:
            unit = "token" if str(self.tokens["answer"]) == "1" else "tokens"
            sizes = f"prompts of {self.tokens['prompt']}, answers of {self.tokens['answer']} {unit}"
            who = f"{counted(self.number, 'request')} ({sizes})"
        if self.clients is not None:
            who += f" from {counted(self.clients, 'client')}"
        return who if self.rate is None else f"{who}, {self.rate:.4g} per second at random"


@dataclass(frozen=True, eq=False, kw_only=True)
class Served(fields.Frozen):
    """Requests that went through a plan; made by `pl.serve`.

    Attributes
    ----------
    sent : Sent
        Who came, to which plan; in words by `str`.
    requests : mapping of str to array
        One number for each request that counts, in the order of arrival: `came_s`, `prompt`, `answer`, `line`,
        `waiting_ms`, `ttft_ms` (with waiting), `tpot_ms` (of its answer, from the first token on), `ended_s`,
        `preempted` (how often). Not a number where a request was rejected or an answer has one token.
    warm_up : int
        Requests that came before, and are left out.
    seconds : float
        From the first arrival that counts to the last.
    ended : array of float
        Times at which requests ended meanwhile, in seconds from its beginning.
    tokens_written : int
        Of the answers of these.
    busy : array of float
        Share of the time that each lane worked.
    limits : Limits or None
        For which the plan was made.
    """

    sent: Sent
    requests: Mapping[str, np.ndarray]
    warm_up: int
    seconds: float
    ended: np.ndarray
    tokens_written: int
    busy: np.ndarray
    limits: Limits | None

    @property
    def lines(self) -> Lines:
        """Pipelines, or ways of a flow, with the rules by which batches enter."""
        return self.sent.lines

    def follow(self, request: int) -> list[tuple[int, float, float, Work]]:
        """Simulate once more, and note the way of one request.

        Parameters
        ----------
        request : int
            Its number among those that count, from 0.

        Returns
        -------
        list of (int, float, float, Work)
            Lane, beginning and end in seconds, and what was done, of all passes that it was in.
        """
        again = self.sent.simulation(self.lines, follow=self.warm_up + request)
        again.run(_first_ended(self.warm_up + request + 1))
        return again.way

    @fields.derived
    def requests_per_s(self) -> float:
        """Requests that ended per second."""
        return len(self.ended) / self.seconds

    @fields.derived
    def requests_error(self) -> float:
        """Standard error of `requests_per_s`, from twenty parts of the time."""
        counts, _ = np.histogram(self.ended, _GROUPS, (0, self.seconds))
        return float(counts.std(ddof=1) * math.sqrt(_GROUPS) / self.seconds)

    @fields.derived
    def tokens_per_s(self) -> float:
        """Tokens of answers that ended, per second."""
        return self.tokens_written / self.seconds

    @property
    def rejected(self) -> int:
        """Requests that are larger than memory."""
        return int(np.isnan(self.requests["ended_s"]).sum())

    @property
    def falls_behind(self) -> bool:
        """Whether fewer end than come, so that requests wait longer and longer."""
        came = len(self.requests["came_s"]) - self.rejected
        return came - len(self.ended) > _FALLS_BEHIND_SHARE * came + 3 * math.sqrt(came)

    def at(self, time: str, percentile: float) -> float:
        """Return a time that so many of a hundred requests do not exceed.

        Parameters
        ----------
        time : {"waiting_ms", "ttft_ms", "tpot_ms"}
            A column of `requests`.
        percentile : float
            From 0 to 100.

        Returns
        -------
        float
            In ms; not a number if no request has such a time.
        """
        known = self._known(time)
        return float(np.percentile(known, percentile)) if len(known) else math.nan

    def error(self, time: str, percentile: float) -> float:
        """Return the standard error of `at`, from twenty groups of requests; not a number if they are few.

        Parameters
        ----------
        time : {"waiting_ms", "ttft_ms", "tpot_ms"}
            A column of `requests`.
        percentile : float
            From 0 to 100.

        Returns
        -------
        float
            In ms.
        """
        return _standard_error(self._known(time), lambda group: np.percentile(group, percentile))

    def _known(self, time: str) -> np.ndarray:
        values = self.requests[time]
        return values[~np.isnan(values)]

    def to_frame(self, *percentiles: float) -> DataFrame:
        """Return the times of requests as a table.

        Parameters
        ----------
        *percentiles : float
            Besides 50, 90, 95 and 99.

        Returns
        -------
        pandas.DataFrame
            A row for waiting, TTFT and TPOT, in ms: `mean`, its `standard_error`, and a column for each percentile.
        """
        columns = sorted({*PERCENTILES, *percentiles})
        rows = []
        for time, words in _TIMES.items():
            known = self._known(time)
            if len(known):
                row: dict[str, Any] = {"time": time, "until": words, "mean": known.mean()}
                row["standard_error"] = _standard_error(known, np.mean)
                rows.append(row | {f"p{p:g}": self.at(time, p) for p in columns})
        return data_frame(rows)

    def gpus_frame(self) -> DataFrame:
        """Return how long stages and links worked as a table.

        Returns
        -------
        pandas.DataFrame
            A row for each lane: `line` (the first that it is in), `lane`, `gpus`, and `busy`, a share of the time.
        """
        lanes = self.lines.lanes
        columns: dict[str, Any] = {"line": [lane.line + 1 for lane in lanes]}
        columns["lane"] = [lane.name for lane in lanes]
        columns["gpus"] = [", ".join(map(str, lane.gpus)) for lane in lanes]
        return data_frame(columns | {"busy": self.busy})

    @property
    def settled(self) -> bool:
        """Whether the second half of the requests waited for no longer than the first, within three standard errors."""
        groups = np.array_split(self._known("ttft_ms"), _GROUPS)
        if min(map(len, groups)) < 2:
            return True
        means = np.array([group.mean() for group in groups])
        first, second = means[: _GROUPS // 2], means[_GROUPS // 2 :]
        error = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / len(first))
        digits = 1e-9 * second.mean()  # lost where all wait for equally long
        return bool(second.mean() - first.mean() <= 3 * error + digits)

    @property
    def sentence(self) -> str:
        """Say rates, times and what went wrong in a few sentences."""
        times = "; ".join(
            f"{time[:4].upper()} {number(self._known(time).mean())} ms in the mean,"
            f" {number(self.at(time, 99))} ± {number(self.error(time, 99), 2)} at the 99th percentile"
            for time in ("ttft_ms", "tpot_ms")
            if len(self._known(time))
        )
        if not times:
            return f"{self.sent}: none fits in memory."
        rate = f"{number(self.requests_per_s)} ± {self.requests_error:.2g} requests/s"
        rate = f"{rate}, {number(self.tokens_per_s)} tokens/s"
        text = f"{self.sent}: {rate if len(self.ended) else 'none ended while they came'}; {times}."
        preempted = int((self.requests["preempted"] > 0).sum())
        if self.falls_behind:
            text += (
                " More come than end: the queue grows, and times depend on how long one watches."
            )
        elif not self.settled:
            text += " Later requests wait longer than earlier ones: simulate more of them, or send fewer."
        if preempted:
            text += f" {counted(preempted, 'request')} lost the cache to others, and read again."
        if self.rejected:
            text += f" {counted(self.rejected, 'request')} need more memory than there is."
        return text + self._broken

    @property
    def _broken(self) -> str:
        """Say by how much limits are broken."""
        text = ""
        for time, limit in zip(("ttft_ms", "tpot_ms"), self.limits or (), strict=False):
            late = self.at(time, 99)
            if late > limit:
                name = time[:4].upper()
                text += f" {name} at the 99th percentile is {late / limit - 1:.1%} above the limit of {limit:.4g} ms."
        return text

    def _repr_html_(self) -> str:
        return f"<p{NO_FORMULAS}>{self.sentence}</p>{table(self.to_frame())}"


def _standard_error(values: np.ndarray, of: Callable[[np.ndarray], Any]) -> float:
    """Of a mean or percentile of numbers in order, of which neighbours depend on one another."""
    if len(values) < 2 * _GROUPS:
        return math.nan
    parts = [of(group) for group in np.array_split(values, _GROUPS)]
    return float(np.std(parts, ddof=1) / math.sqrt(_GROUPS))


@fields.checked_arguments
def serve(
    problem: arguments.AskedProblem,
    plan: Any,
    requests: int | str | Path = 10_000,
    *,
    rate: _Rate = None,
    clients: _Clients = None,
    prompt: Any = None,
    answer: Any = None,
    chunk: _Chunk = None,
    seed: fields.Natural = 0,
) -> Served:
    """Send requests through a plan, and follow them event by event.

    `solve` and `deploy` prove what a plan yields in the mean, where nobody waits. Here requests come at random and
    differ, and the engine forms batches by its filling (`docs/fillings.md`, `pipelab.serving`).

    Parameters
    ----------
    problem : Problem
        Its cost model says how long batches take, and how the engine fills pipelines.
    plan : Placement, Result, Deployment or Flow
        Requests are sent to its pipelines or ways in proportion to their rates. Of pools, one reads and the other
        writes. An answer that was found with `runs_on` is filled as that engine fills pipelines.
    requests : int or path
        How many count; a quarter as many, or more, come before them. Or a CSV file with a column of times, of tokens of
        prompts and of answers: `seconds`, `prompt`, `answer`, or as in Azure's and BurstGPT's traces.
    rate : float, optional
        Requests/s, which come at random (Poisson).
    clients : int, optional
        In the place of a rate: so many send a request each time that their last one has ended.
    prompt, answer : int or tuple, optional
        Tokens: a number, ("uniform", least, most), ("exponential", mean), or ("lognormal", mean, standard deviation
        over mean). By default the workload's.
    chunk : int, optional
        Tokens in one batch at most, of which those of prompts are what answers leave. By default the engine's
        (`CostModel.chunk_tokens`); with the filling "synchronous" as many as the workload has in a microbatch.
    seed : int
        Of times and lengths.

    Returns
    -------
    Served
        One simulation, with its standard errors.

    Raises
    ------
    InvalidPlacement
        The plan does not fit.
    InvalidValue
        Not exactly one of a rate, clients and a file is given; or the plan's answers have no length.
    InvalidData
        The file is not valid, at this row and column.

    Notes
    -----
    In a batch of prompts and answers the prompts take what a mixed microbatch takes beyond one without prompts; a
    part of a prompt beside answers looks back at half of the workload's prompt, and others at what was read before
    (`pipelab.engine.serving.line_times`). Memory counts
    tokens. A request waits until there is room for its whole answer; with vLLM and SGLang (`runs_on`) for its prompt,
    and the one that came last loses its cache where there is none left.

    Examples
    --------
    >>> import pipelab as pl
    >>> gpus, load = pl.Cluster.from_counts({"fast": 1}, 8.0, 1.0), pl.Workload(1000, 1)
    >>> problem = pl.Problem(gpus, pl.Model("m", 4, 8, 8, 1.0), load, pl.LayerTimes({"fast": 250}))
    >>> served = pl.serve(problem, pl.solve(problem), rate=0.5)  # a queue with one server (M/D/1)
    >>> mean = served.requests["waiting_ms"].mean()
    >>> round(float(mean), -2)
    500.0
    """
    arguments.refuse_training(problem, "serve")
    rows = from_file(Path(requests)) if isinstance(requests, str | Path) else None
    if (rate is None) == (clients is None and rows is None):
        expected = "expected either a rate, or clients, or a file of requests"
        raise InvalidValue("serve", [("rate", rate, expected)])
    if isinstance(plan, PlanAnswer) and plan.runs_on:
        problem = as_engine_fills(problem, plan.runs_on)
    requests = len(rows) if rows else requests
    lines = lines_of(problem, plan, chunk)
    sent = Sent(
        problem=problem,
        plan=plan,
        chunk=chunk,
        rows=rows,
        number=fields.checked_value("serve", "requests", requests, fields.Count),
        rate=rate,
        clients=clients,
        tokens=_tokens(prompt, answer, problem.workload, lines),
        seed=seed,
    )
    return simulated(sent)


def simulated(sent: Sent) -> Served:
    """Simulate what is sent."""
    rows, number, least = sent.rows, sent.number, 3 * (sent.clients or 0)
    run, begin, warm_up = sent.simulation(sent.lines), 0.0, 0
    with tqdm(unit=" requests", delay=_SILENT_S, disable=None, leave=False) as bar:  # on a terminal
        if rows is None:
            warm = _first_ended(max(math.ceil(_WARM_UP_SHARE * number), least), bar)
            run.run(lambda at: warm(at) or 2 * len(at.visits) >= sent.most_come)
            begin, warm_up = run.now, len(run.visits)
        busy, bar.total = run.busy.copy(), warm_up + number
        run.run(_first_ended(warm_up + number, bar))
    visits = run.visits[warm_up : warm_up + number]
    end = run.now if rows or visits[-1].came <= begin else visits[-1].came
    answered = [v for v in run.visits if begin < v.ended <= end and not v.rejected]

    return Served(
        sent=sent,
        requests=_columns(visits),
        warm_up=warm_up,
        seconds=max(end - begin, 1e-300),
        ended=np.array(sorted(visit.ended for visit in answered)) - begin,
        tokens_written=sum(visit.request.answer for visit in answered),
        busy=(run.busy - busy) / max(run.now - begin, 1e-300),
        limits=getattr(sent.plan, "limits", None),
    )


def _tokens(prompt: Any, answer: Any, load: Workload, lines: Lines) -> dict[str, Lengths]:
    """Read the lengths of prompts and answers, by default those of the workload."""
    writes = load.phase != "prefill" or any(line.hands_on for line in lines.lines)
    prompt = load.sequence_length if prompt is None else prompt
    answer = (load.output_tokens if writes else 1) if answer is None else answer
    if answer is None:
        expected = "expected tokens, or a workload with output_tokens"
        raise InvalidValue("serve", [("answer", None, expected)])
    return {"prompt": lengths("prompt", prompt), "answer": lengths("answer", answer)}


def _first_ended(number: int, bar: Any = None) -> Callable[[Simulation], bool]:
    """Return a function that tells whether the first requests, so many, have ended; a bar may show them."""
    seen = 0

    def ended(run: Simulation) -> bool:
        nonlocal seen
        while seen < min(number, len(run.visits)) and not math.isnan(run.visits[seen].ended):
            seen += 1
            if bar is not None and seen > bar.n:
                bar.update()
        return seen == number

    return ended


def _columns(visits: list[Visit]) -> dict[str, np.ndarray]:
    """Return the columns of `Served.requests`."""

    def of(name: str) -> np.ndarray:
        return np.array([getattr(visit, name) for visit in visits])

    came, ended = of("came"), np.where(of("rejected"), math.nan, of("ended"))
    answer = np.array([visit.request.answer for visit in visits])
    more = np.where(answer > 1, answer - 1.0, math.nan)
    return {
        "came_s": came,
        "prompt": np.array([visit.request.prompt for visit in visits]),
        "answer": answer,
        "line": of("line") + 1,
        "waiting_ms": 1000 * (of("admitted") - came),
        "ttft_ms": 1000 * (of("first") - came),
        "tpot_ms": 1000 * (ended - of("first")) / more,
        "ended_s": ended,
        "preempted": of("preempted"),
    }


def chunk_advice(served: Served) -> str:
    """Say how many tokens a batch had, the engine's option for them, and with which fewer it serves better.

    Where no number was chosen, the first requests are sent again through batches of a half, a quarter, … of the
    engine's, as long as every sequence has a token; the largest is named that is about as quick as the quickest.
    Empty where no engine is named, or it has no such option.
    """
    sent, engine, lines = served.sent, served.sent.problem.costs.runs_on, served.lines.lines
    option = known_rules()[engine].tokens_option if engine in known_rules() else ""
    most = min(line.tokens for line in lines)
    if not option or most == math.inf:
        return ""
    said = f"Batches have at most {most:,.0f} tokens ({option} of {engine})"
    least = max(line.at_once * line.sequences for line in lines)
    if most < least:
        return f"{said}, which needs {least:,.0f}, one for each sequence: with fewer it does not start."
    if sent.chunk is not None:
        return f"{said}: end the command of its script with {option} {sent.chunk}."
    sizes = [int(most) >> halvings for halvings in range(_TRIED_HALVINGS + 1)]
    few = replace(sent, number=min(sent.number, _TRIED_REQUESTS))
    tried = {size: simulated(replace(few, chunk=size)) for size in sizes if size >= least}
    seconds = {size: _seconds_to_complete(one) for size, one in tried.items()}
    enough = min(seconds.values()) / (1 - _NOTICED_SHARE)
    better = next(size for size, mean in seconds.items() if mean <= enough)
    if better == most:
        return f"{said}."
    return (
        f"{said}. With --chunk {better} answers are complete after {seconds[better]:.4g} s in the mean of {few.number} "
        f"requests, and not {seconds[sizes[0]]:.4g}: end the command of the script with {option} {better}."
    )


def _seconds_to_complete(served: Served) -> float:
    """Return the mean from the arrival of a request to the end of its answer; infinite if none fits in memory."""
    seconds = served.requests["ended_s"] - served.requests["came_s"]
    return float(np.nanmean(seconds)) if served.rejected < len(seconds) else math.inf
