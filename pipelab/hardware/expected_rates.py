"""How far a predicted rate may be off: errors on published times that no constant was fitted to."""

import math
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from pipelab.cluster import GPU
from pipelab.display import listed
from pipelab.evaluation import Evaluation, StageReport
from pipelab.hardware.known_models import load_model
from pipelab.io.paths import data_dir
from pipelab.problem import Workload

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from pipelab.hardware.roofline import Roofline
    from pipelab.problem import Problem

LEAST_ROWS = 20  # of a kind; quantiles of fewer say little
_WORDS = {
    "1": "one GPU per layer",
    "2": "two GPUs per layer",
    "4 or more": "four and more per layer",
}


@dataclass(frozen=True)
class ExpectedRate:
    """Where the attainable rate of a plan lies in four of five cases.

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
        """The sentence, if no time of such a model was compared; else empty."""
        return self.sentence if self.within is None else ""

    @property
    def html(self) -> str:
        """The sentence, and what to ask about it."""
        if self.within is None:
            return escape(self.sentence)
        ask = f"<code>pl.sensitivity(…, within={self.within:.2f})</code>"
        return f"{escape(self.sentence)} Whether another plan would then be better: {ask}."


def expected_rate(problem: "Problem", evaluation: Evaluation, bundled: "Roofline") -> ExpectedRate:
    """Return the band of this plan's attainable rate: stages are off as similar stages were, links are exact.

    Rows of one kind have a phase and a number of GPUs per layer; if there are too few, the phase
    alone. None of them reads prompts with a mixture of experts. `bundled` has the constants as they
    come with the package, to which no row that counts was fitted.
    """
    if doubt := doubt_of(problem):
        return ExpectedRate(None, None, None, doubt)
    phase, experts = problem.workload.phase, getattr(problem.model, "has_experts", False)
    kinds = [_kind(_bands(bundled), phase, stage) for stage in evaluation.stages]
    # Time is off by the error, so the true rate is the predicted times 1 + error.
    low, high = (_off(evaluation, [1 + band[side] for band in kinds]) for side in ("low", "high"))
    slowest = min(range(len(kinds)), key=lambda i: evaluation.stages[i].throughput)
    band, now = kinds[slowest], evaluation.throughput
    sentence = (
        f"Expect {_three_digits(low)} to {_three_digits(high)} tokens/s: of {band['rows']:.0f} published times of this "
        f"kind ({_words(band)}), four in five were off by {band['low']:+.0%} to {band['high']:+.0%}."
    )
    if experts:
        sentence += (
            f" Of all {_published()} published times {_with_experts()} are of mixtures of experts."
        )
    never = [t for t in dict.fromkeys(evaluation.stages[slowest].gpu_types) if t not in _compared()]
    if never:
        sentence += f" No published time of {listed(never)} was compared."
    within = max(abs(low / now - 1), abs(high / now - 1))
    return ExpectedRate(float(low), float(high), float(within), sentence)


def doubt_of(problem: "Problem") -> str:
    """Say why rates of this problem may be far off, if no time of such a model was compared; else nothing."""
    experts = getattr(problem.model, "has_experts", False)
    return _of_experts() if experts and problem.workload.phase in ("prefill", "mixed") else ""


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


def errors_held_out(costs: "Roofline") -> "DataFrame":
    """Return the rows of `data/held_out_times.csv` with their `error` by this cost model: see `held_out_errors`."""
    import pandas as pd

    rows = pd.read_csv(data_dir() / "held_out_times.csv")
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
        Per group `rows`, the `median` of |error|, and its quantiles `low` (10%) and `high` (90%);
        the index is (phase, GPUs that cut a layer, engine), "all" standing for the rest.
    """
    import pandas as pd

    degree = table.get("tensor_parallel", pd.Series(1, table.index)).fillna(1).astype(int)
    cut = degree.map(_cut)
    engine = table.get("engine", pd.Series("", table.index)).fillna("")
    groups = [(("all", "all", "all"), table["error"])]
    groups += [((p, "all", "all"), e) for p, e in table["error"].groupby(table["phase"])]
    groups += [((*k, "all"), e) for k, e in table["error"].groupby([table["phase"], cut])]
    groups += [(k, e) for k, e in table["error"].groupby([table["phase"], cut, engine])]
    rows = {key: (len(e), e.abs().median(), e.quantile(0.1), e.quantile(0.9)) for key, e in groups}
    found = pd.DataFrame.from_dict(rows, orient="index", columns=["rows", "median", "low", "high"])
    found.index = pd.MultiIndex.from_tuples(rows, names=["phase", "GPUs per layer", "engine"])
    return found


def _cut(degree: int) -> str:
    return "1" if degree == 1 else "2" if degree < 4 else "4 or more"


def _seconds(costs: "Roofline", row: "Series") -> float:
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
def _bands(costs: "Roofline") -> "DataFrame":
    return error_bands(errors_held_out(costs))


def _compared() -> frozenset[str]:
    """Types of GPU with a published time, fitted to or not."""
    return frozenset(_times()["gpu_type"])


@cache
def _times() -> "DataFrame":
    """Load all published times in serving: those that constants were fitted to, and those held out."""
    import pandas as pd

    files = ("measured_times.csv", "held_out_times.csv")
    return pd.concat([pd.read_csv(data_dir() / f)[["model", "gpu_type", "phase"]] for f in files])


def _published() -> int:
    return len(_times())


def _with_experts(phase: str | None = None) -> int:
    """Count the published times of mixtures of experts."""
    times = _times() if phase is None else _times()[_times()["phase"] == phase]
    return sum(load_model(name).has_experts for name in times["model"])


def _of_experts() -> str:
    return (
        f"How far off this rate is, nothing says: of {_published()} published times, "
        f"{_with_experts('prefill') or 'none'} is of prompts read by a mixture of experts. It is likely several times "
        "too high, as expert-parallel and data-parallel attention, their all-to-all messages, and experts that are "
        "visited unevenly are left out: DeepSeek-R1 on 8 H200 was measured at 15,500 to 20,400 tokens/s of prompts "
        "and answers (GPUStack, SGLang, 2025)."
    )


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
