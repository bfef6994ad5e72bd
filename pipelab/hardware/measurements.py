"""Predicted against measured: the roofline held against published times, and how far a rate may be off."""

import math
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipelab.cluster import GPU
from pipelab.display import listed
from pipelab.evaluation import Evaluation, StageReport
from pipelab.fields import instance
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import frame_of, place
from pipelab.files.reading_and_writing import path_of
from pipelab.hardware.calibration import read_measurements
from pipelab.hardware.known_models import load_model
from pipelab.hardware.roofline import Roofline
from pipelab.problem import Problem, Workload

if TYPE_CHECKING:
    from pandas import DataFrame, Series


LEAST_ROWS = 20  # of a kind; quantiles of fewer say little
_WORDS = {
    "1": "one GPU per layer",
    "2": "two GPUs per layer",
    "4 or more": "four and more per layer",
}


def against_measured(costs: Roofline | None = None, path: str | Path | None = None) -> "DataFrame":
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
    costs = Roofline() if costs is None else costs
    instance("against_measured", "costs", costs, Roofline, "Roofline()")
    bundled = data_dir() / "measured_times.csv"
    path = bundled if path is None else path_of("against_measured", path)
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
        share for `pl.sensitivity`; and a `sentence`. The first three are None if no such time
        was compared: prompts of mixtures of experts.

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
    # Stages are off as similar stages were, links are exact. Rows of one kind have a phase and a number of
    # GPUs per layer; if there are too few, the phase alone. None of them reads prompts with a mixture of experts.
    if not isinstance(problem.costs, Roofline):
        return None
    if doubt := doubt_of(problem):
        return ExpectedRate(low=None, high=None, within=None, sentence=doubt)
    phase, experts = problem.workload.phase, problem.model.has_experts
    kinds = [_kind(_bands(), phase, stage) for stage in evaluation.stages]
    # Time is off by the error, so the true rate is the predicted times 1 + error.
    low, high = (_off(evaluation, [1 + band[side] for band in kinds]) for side in ("low", "high"))
    slowest = min(range(len(kinds)), key=lambda i: evaluation.stages[i].throughput)
    band, now = kinds[slowest], evaluation.throughput
    sentence = (
        f"Expect {_three_digits(low)} to {_three_digits(high)} tokens/s: of {band['rows']:.0f} published times of this "
        f"kind ({_words(band)}), four in five were off by {band['low']:+.0%} to {band['high']:+.0%}."
    )
    if experts:
        several = _times()["experts"].sum()
        sentence += f" Of all {len(_times())} published times {several} are of mixtures of experts."
    compared, used = set(_times()["gpu_type"]), evaluation.stages[slowest].gpu_types
    never = [t for t in dict.fromkeys(used) if t not in compared]
    if never:
        sentence += f" No published time of {listed(never)} was compared."
    within = max(abs(low / now - 1), abs(high / now - 1))
    return ExpectedRate(low=float(low), high=float(high), within=float(within), sentence=sentence)


def doubt_of(problem: Problem) -> str:
    """Say why rates of this problem may be far off, if no time of such a model was compared; else nothing."""
    experts = problem.model.has_experts
    if not experts or problem.workload.phase not in ("prefill", "mixed"):
        return ""
    prompts = _times()["experts"] & (_times()["phase"] == "prefill")
    return (
        f"How far off this rate is, nothing says: of {len(_times())} published times, "
        f"{prompts.sum() or 'none'} is of prompts read by a mixture of experts. It is likely several times "
        "too high, as expert-parallel and data-parallel attention, their all-to-all messages, and experts that are "
        "visited unevenly are left out: DeepSeek-R1 on 8 H200 was measured at 15,500 to 20,400 tokens/s of prompts "
        "and answers (GPUStack, SGLang, 2025)."
    )


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


def held_out_errors() -> "DataFrame":
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
    267 times: median 8.0%
    """
    import pandas as pd

    costs, rows = Roofline(), pd.read_csv(data_dir() / "held_out_times.csv")
    errors = [
        _seconds(costs.running(row.engine), row) / row.seconds - 1 for row in rows.itertuples()
    ]
    return rows.assign(error=errors, phase=rows["phase"].replace("request", "decode"))


def error_bands(table: "DataFrame") -> "DataFrame":
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

    degree = table.get("tensor_parallel", pd.Series(1, table.index)).fillna(1).astype(int)
    cut = degree.map(_cut)
    engine = table.get("engine", pd.Series("", table.index)).fillna("")
    groups = [(("all", "all", "all"), table["error"])]
    for depth in (1, 2, 3):
        by = table["error"].groupby([table["phase"], cut, engine][:depth])
        groups += [((*key, "all", "all")[:3], errors) for key, errors in by]
    rows = {key: (len(e), e.abs().median(), e.quantile(0.1), e.quantile(0.9)) for key, e in groups}
    bands = pd.DataFrame.from_dict(rows, orient="index", columns=["rows", "median", "low", "high"])
    bands.index = pd.MultiIndex.from_tuples(rows, names=["phase", "GPUs per layer", "engine"])
    return bands


def _cut(degree: int) -> str:
    return "1" if degree == 1 else "2" if degree < 4 else "4 or more"


def _seconds(costs: Roofline, row: "Series") -> float:
    model = load_model(row.model, precision=row.precision)
    inside = None if np.isnan(row.node_gb_per_s) else row.node_gb_per_s
    memory = costs.gpus[row.gpu_type].memory_gb
    gpu = GPU(row.gpu_type, memory, None, "measured" if inside else "", inside)

    def taken(tokens: float, phase: str) -> float:
        load = Workload(int(tokens), int(row.batch), phase)  # type: ignore[arg-type]  # as the file has it
        layers, degree = range(model.layers), int(row.tensor_parallel)
        return costs.pass_seconds(model, load, gpu, layers, degree)

    if row.phase != "request":
        return taken(row.prompt, row.phase)
    steps = row.output - 1
    return taken(row.prompt, "prefill") + steps * taken(row.prompt + row.output // 2, "decode")


@cache
def _bands() -> "DataFrame":
    return error_bands(held_out_errors())


@cache
def _times() -> "DataFrame":
    """Load all published times in serving: those that constants were fitted to, and those held out."""
    import pandas as pd

    files = ("measured_times.csv", "held_out_times.csv")
    times = pd.concat([pd.read_csv(data_dir() / f)[["model", "gpu_type", "phase"]] for f in files])
    return times.assign(experts=[load_model(name).has_experts for name in times["model"]])


def _kind(bands: "DataFrame", phase: str, stage: StageReport) -> "Series":
    for key in ((phase, _cut(stage.degree), "all"), (phase, "all", "all")):
        if key in bands.index and bands.loc[key, "rows"] >= LEAST_ROWS:
            return bands.loc[key]
    return bands.loc[("all", "all", "all")]


def _three_digits(rate: float) -> str:
    return f"{float(f'{rate:.3g}'):,.12g}"


def _words(band: "Series") -> str:
    phase, cut, _ = band.name
    if phase == "all":
        return "prefill and decode"
    return f"{phase}, {_WORDS[cut]}" if cut != "all" else phase
