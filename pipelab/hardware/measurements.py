"""Predicted against measured: the roofline held against published times, and how far a rate may be off."""

import math
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, cast

from pipelab.display import DataFrame, Series, listed
from pipelab.evaluation import Evaluation
from pipelab.fields import instance
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import frame_of, place
from pipelab.files.reading_and_writing import path_of
from pipelab.hardware.measured_pipelines import PipelineErrors, pipeline_rows, synchronous_share
from pipelab.hardware.published_times import (
    ONE_GPU,
    TENSOR_PARALLELISM,
    Band,
    TimeGroup,
    band_of,
    group_of,
    held_out_rows,
    published_errors,
    read_measurements,
    served_rows,
)
from pipelab.hardware.roofline import Roofline
from pipelab.placement import Placement
from pipelab.problem import Problem


def against_measured(costs: Roofline | None = None, path: str | Path | None = None) -> DataFrame:
    """Compare each measurement with what the roofline predicts.

    Parameters
    ----------
    costs : Roofline, optional
        By default `Roofline()`. A row that names an engine is predicted for that engine.
    path : str or Path, optional
        A CSV with the columns of `data/measured_times.csv`.

    Returns
    -------
    pandas.DataFrame
        `what`, `measured`, `predicted` (in the unit of `measured`), `unit` ("ms" or "tokens/s"),
        `error` = predicted time / measured time - 1, whatever the unit, so above 0 means the model
        is too slow; then the file's other columns.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, a value does not fit, or there is no such model,
        precision, engine or GPU.
    InvalidValue
        `costs` is not a `Roofline`, or `path` is not a path.

    References
    ----------
    `data/measured_times.csv` names the source of every row; `notebooks/data.md` says which constants
    were fitted to them.

    Examples
    --------
    >>> import pipelab as pl
    >>> table = pl.hardware.against_measured()
    >>> bool(table["error"].abs().median() < 0.08)
    True
    """
    costs, path = _asked("against_measured", costs, path, "measured_times.csv")
    table = frame_of(path, "what").reset_index()
    times, predicted = [], []
    for row, one in read_measurements(path):
        milliseconds = place(row, {}, partial(one.predicted, costs))
        times.append(milliseconds / one.milliseconds)
        in_ms = one.unit == "ms"
        predicted.append(milliseconds if in_ms else 1000 * one.workload.tokens / milliseconds)
    table["predicted"], table["error"] = predicted, [ratio - 1 for ratio in times]
    first = ["what", "measured", "predicted", "unit", "error"]
    return table[[*first, *[c for c in table.columns if c not in first]]]


def against_served(costs: Roofline | None = None, path: str | Path | None = None) -> DataFrame:
    """Compare times of servers that many requests use at once with what the roofline predicts.

    Parameters
    ----------
    costs : Roofline, optional
        By default `Roofline()`. Each row is predicted for its engine.
    path : str or Path, optional
        A CSV with the columns of `data/served_times.csv`.

    Returns
    -------
    pandas.DataFrame
        `id`, `tpot_error` and `ttft_error`: predicted over measured time per token, and time to the first
        token, less 1, so above 0 means the model is too slow; then the file's other columns. Not a number
        where the GPUs of a row cannot hold the model's weights.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, a value does not fit, or there is no such model,
        engine or GPU.
    InvalidValue
        `costs` is not a `Roofline`, or `path` is not a path.

    References
    ----------
    AIConfigurator's `silicon_sample.csv`; `notebooks/data.md` says more.

    Examples
    --------
    >>> import pipelab as pl
    >>> table = pl.hardware.against_served()
    >>> bool(table["tpot_error"].abs().median() < 0.1)
    True
    """
    costs, path = _asked("against_served", costs, path, "served_times.csv")
    table = served_rows(costs, path)
    first = ["id", "tpot_error", "ttft_error"]
    return table[[*first, *[c for c in table.columns if c not in first]]]


def against_pipelines(costs: Roofline | None = None, path: str | Path | None = None) -> DataFrame:
    """Compare pipelines that were measured with what they would yield by each way to fill them.

    Parameters
    ----------
    costs : Roofline, optional
        By default `Roofline()`. Stage times are those of its engine "vLLM 0.2".
    path : str or Path, optional
        A CSV with the columns of `data/pipelines_measured.csv`.

    Returns
    -------
    pandas.DataFrame
        `run`; `rate_error`, `latency_error` and `prompt_latency_error`, predicted over measured less 1, with the
        filling "dynamic" simulated (`pipelab.filling`); `merged_rate_error` by its closed form;
        `synchronous_rate_error` of microbatches that never wait; then the file's other columns. Nothing is
        fitted to these runs.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, a value does not fit, or there is no such model
        or GPU.
    InvalidValue
        `costs` is not a `Roofline`, or `path` is not a path.

    References
    ----------
    Event logs of Helix's prototype (Thesys-lab/Helix-ASPLOS25); Y. Mei et al., *Helix*, ASPLOS 2025.

    Examples
    --------
    >>> import pipelab as pl
    >>> table = pl.hardware.against_pipelines()
    >>> bool(table["rate_error"].abs().median() < 0.25 < table["synchronous_rate_error"].median())
    True
    """
    costs, path = _asked("against_pipelines", costs, path, "pipelines_measured.csv")
    table = pipeline_rows(costs, path)
    first = ["run", *PipelineErrors._fields]
    return table[[*first, *[c for c in table.columns if c not in first]]]


def _asked(function: str, costs: Any, path: Any, bundled: str) -> tuple[Roofline, Path]:
    """Return the cost model and the file that a comparison is about."""
    costs = Roofline() if costs is None else costs
    instance(function, "costs", costs, Roofline, "Roofline()")
    return costs, data_dir() / bundled if path is None else path_of(function, path)


@dataclass(frozen=True, kw_only=True)
class ExpectedRate:
    """The range in which a plan's attainable rate lies in four of five cases.

    Attributes
    ----------
    low, high : float or None
        In tokens/s; None if no time of such a model was compared.
    within : float or None
        The greater of both distances from the prediction, as a share of it: what to ask
        `pl.sensitivity` about.
    sentence : str
        Both, what they rest on, and which GPU types of the bottleneck were never compared.
    """

    low: float | None
    high: float | None
    within: float | None
    sentence: str

    @property
    def doubt(self) -> str:
        """Return the sentence, if no time of such a model was compared; else empty."""
        return self.sentence if self.within is None else ""

    @property
    def html(self) -> str:
        """Return the sentence, and what to ask about it."""
        if self.within is None:
            return escape(self.sentence)
        ask = f"<code>pl.sensitivity(…, within={self.within:.2f})</code>"
        return f"{escape(self.sentence)} Whether another plan would then be better: {ask}."


def expected_rate(problem: Problem, evaluation: Evaluation) -> ExpectedRate | None:
    """Say how far a plan's rate may be off, by published times that no constant was fitted to.

    Parameters
    ----------
    problem : Problem
        Whose phase counts.
    evaluation : Evaluation
        Of the plan, such as `result.evaluation`.

    Returns
    -------
    ExpectedRate or None
        None of other cost models than `Roofline`.
        `low` and `high` in tokens/s, between which four of five measured times lie; `within`, a
        share for `pl.sensitivity`; and a `sentence`. The first three are None if too few such times
        were compared: of prompts that mixtures of experts read alone.

    Examples
    --------
    >>> import pipelab as pl
    >>> cluster, load = pl.Cluster.from_counts({"L4": 2}, 24, 1), pl.Workload(2048, 1, "decode")
    >>> problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline())
    >>> result = pl.solve(problem)
    >>> expected = pl.hardware.expected_rate(problem, result.evaluation)
    >>> expected.low < result.throughput < expected.high
    True
    """
    # Stages are off as similar stages were, links are exact.
    if not isinstance(problem.costs, Roofline):
        return None
    if doubt := doubt_of(problem):
        return ExpectedRate(low=None, high=None, within=None, sentence=doubt)
    degrees = [stage.degree for stage in evaluation.stages]
    by_degree = {degree: _band_of(problem, degree) for degree in set(degrees)}
    bands = [by_degree[degree] for degree in degrees]
    # Time is off by the error, so the true rate is the predicted times 1 + error.
    faster = ([1 + getattr(band, side) for band in bands] for side in ("low", "high"))
    low, high = (_off(evaluation, times) for times in faster)
    slowest = min(range(len(bands)), key=lambda i: evaluation.stages[i].throughput)
    band, now = bands[slowest], evaluation.throughput
    sentence = (
        f"Expect {_three_digits(low)} to {_three_digits(high)} tokens/s: of {band.measurements} published times of "
        f"this kind ({band.group.words}), four in five were off by {band.low:+.0%} to {band.high:+.0%}."
    )
    if len(evaluation.stages) > 1:
        sentence += f" {_of_pipelines(problem, evaluation)}"
    compared = set(published_errors(Roofline())["gpu_type"])
    used = evaluation.stages[slowest].gpu_types
    never = [t for t in dict.fromkeys(used) if t not in compared]
    if never:
        sentence += f" No published time of {listed(never)} was compared."
    within = max(abs(low / now - 1), abs(high / now - 1))
    return ExpectedRate(low=float(low), high=float(high), within=float(within), sentence=sentence)


def _of_pipelines(problem: Problem, evaluation: Evaluation) -> str:
    """Say how far off rates of pipelines are."""
    costs = cast(Roofline, problem.costs)
    if evaluation.filling == "synchronous" and problem.workload.phase in ("decode", "mixed"):
        runs, share = synchronous_share(costs)
        return (
            f"Microbatches that never wait for one another (synchronous) are assumed: {runs} pipelines that were "
            f"measured, filled dynamically, ran at {share:.0%} of such a rate in the median."
        )
    placement = Placement(tuple(report.stage for report in evaluation.stages))
    return costs.band(problem, placement).sentence


def doubt_of(problem: Problem) -> str:
    """Say why rates of this problem may be far off, if no time of such a model was compared; else nothing."""
    if problem.model.unmeasured:
        return band_of(group_of(problem, ""), Roofline()).sentence
    if not problem.model.has_experts or problem.workload.phase != "prefill":
        return ""
    band = band_of(TimeGroup("prefill", True, None, None), Roofline())
    left_out = (
        "Expert-parallel and data-parallel attention, and their all-to-all messages, are left out."
    )
    return "" if band.median is not None else f"{band.sentence} {left_out}"


def _off(evaluation: Evaluation, faster: "list[float]") -> float:
    """Return the attainable rate if each stage is faster by its factor."""
    pairs = list(zip(evaluation.stages, faster, strict=True))
    rates = [stage.throughput * times for stage, times in pairs]
    if evaluation.link_unit == "tokens":
        rates += [link.throughput for link in evaluation.links]
    if evaluation.in_flight is not None:
        times_taken = [stage.seconds / times for stage, times in pairs]
        traversal = math.fsum(times_taken + [link.seconds for link in evaluation.links])
        rates.append(evaluation.in_flight * evaluation.tokens / traversal)
    return min(rates)


def held_out_errors() -> DataFrame:
    """Return the rows of `data/held_out_times.csv` with their `error` by the bundled constants.

    A request is predicted as its prompt and then token by token, with half its answer in context;
    nearly all of its time is decoding, so that is its phase.

    Returns
    -------
    pandas.DataFrame
        The rows of the file with `error`, predicted / measured time − 1. No constant was fitted to them.

    Examples
    --------
    >>> errors = held_out_errors()["error"]
    >>> print(f"{len(errors)} times: median {errors.abs().median():.1%}")
    302 times: median 8.1%
    """
    return held_out_rows(Roofline())


def error_bands(table: DataFrame) -> DataFrame:
    """Return quantiles of the prediction error by phase, GPUs per layer and engine.

    Parameters
    ----------
    table : pandas.DataFrame
        From `against_measured`.

    Returns
    -------
    pandas.DataFrame
        Per group `rows`, the `median` of abs(error), and its quantiles `low` (10%) and `high` (90%);
        the index is (phase, GPUs that cut a layer, engine), "all" standing for the rest.
    """
    import pandas as pd

    cut, engine = cuts_and_engines(table)
    groups = [(("all", "all", "all"), table["error"])]
    for depth in (1, 2, 3):
        by = table["error"].groupby([table["phase"], cut, engine][:depth])
        groups += [((*key, "all", "all")[:3], errors) for key, errors in by]
    rows = {key: (len(e), e.abs().median(), e.quantile(0.1), e.quantile(0.9)) for key, e in groups}
    bands = pd.DataFrame.from_dict(rows, orient="index", columns=["rows", "median", "low", "high"])
    bands.index = pd.MultiIndex.from_tuples(rows, names=["phase", "GPUs per layer", "engine"])
    return bands


def cuts_and_engines(table: DataFrame) -> tuple[Series, Series]:
    """Return how many GPUs cut a layer, and which engine ran, of each row: empty where the table names none."""
    import pandas as pd

    degree = table.get("tensor_parallel", pd.Series(1, table.index)).fillna(1).astype(int)
    return degree.map(_cut), table.get("engine", pd.Series("", table.index)).fillna("")


def _cut(degree: int) -> str:
    return "1" if degree == 1 else "2" if degree < 4 else "4 or more"


def _band_of(problem: Problem, degree: int) -> Band:
    """Return the errors of times like a stage's: of its group, or of the next wider one that has enough of them."""
    layout = TENSOR_PARALLELISM if degree > 1 else ONE_GPU
    engine = cast(Roofline, problem.costs).engine
    group = group_of(problem, engine)._replace(layout=layout)
    bands = (band_of(wider, Roofline()) for wider in group.widened())
    return next(band for band in bands if band.median is not None)


def _three_digits(rate: float) -> str:
    return f"{float(f'{rate:.3g}'):,.12g}"
