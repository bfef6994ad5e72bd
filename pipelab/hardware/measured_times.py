"""Measured stage times in place of a formula: tables, interpolated, never extrapolated in silence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import of_wrapped, pass_time, whole_sequences
from pipelab.errors import InvalidData, InvalidValue
from pipelab.fields import Count, Flag, Positive, checked, derived, described
from pipelab.files.csv_rows import read_objects
from pipelab.files.reading_and_writing import path_of
from pipelab.problem import CostModel, ModelLike, Problem, StageCost, StageTables, Workload

if TYPE_CHECKING:
    from scipy.interpolate import RegularGridInterpolator


def _interpolator(name: str, table: Mapping, per_layer: bool) -> "RegularGridInterpolator":
    """Return seconds of one type of GPU by (layers, batch), infinite beyond what was measured.

    Every pair of measured layers and batches must be there.
    """
    from scipy.interpolate import RegularGridInterpolator

    if not table:
        expected = "expected at least one time, such as {(1, 8): 2.5}"
        raise InvalidValue("Measured", [(name, {}, expected)])
    axes = [np.unique([key[i] for key in table]).astype(float) for i in (0, 1)]
    layers, batch = axes
    missing = [(n, b) for n in layers for b in batch if (n, b) not in table]
    problems = []
    if missing:
        n, b = missing[0]
        expected = f"{n:g} layers with batch {b:g} are missing; expected every pair"
        problems.append((name, "table", expected))
    if per_layer and layers.tolist() != [1.0]:
        expected = "per_layer=True expects times of one layer only"
        problems.append((name, f"layers {layers.tolist()}", expected))
    if problems:
        raise InvalidValue("Measured", problems)
    seconds = np.array([[table[n, b] / 1000 for b in batch] for n in layers])
    # One measured value stands for itself alone; scipy wants two, so it is given a neighbour as good as equal.
    axes = [x if len(x) > 1 else np.array([x[0], np.nextafter(x[0], np.inf)]) for x in axes]
    values = np.broadcast_to(seconds, [len(x) for x in axes]) if 1 in seconds.shape else seconds
    return RegularGridInterpolator(axes, values, bounds_error=False, fill_value=np.inf)


@checked(eq=False)
class Measured(CostModel):
    """A cost model made of measurements, for stages of one GPU or of several that share the batch evenly.

    Parameters
    ----------
    milliseconds : mapping of GPU type to mapping of (layers, batch) to float
        Time of one pass of so many sequences through so many layers on one GPU in ms, for every
        pair of the layers and batches that occur.
    needs : cost model
        Says what stages need in memory and what links carry: `Roofline()` or `LinearThroughput`.
    per_layer : bool
        The table has one layer only, and n layers take n times as long.
    beyond : {"refuse", "leave out"}
        What becomes of stages that were not measured: a problem that may ask for them is refused,
        or they are not considered.

    Raises
    ------
    InvalidValue
        There is no time, a time or a batch is not above 0, a pair is missing, `needs` is no cost
        model, or `per_layer` is said of a table with more than one layer.

    Notes
    -----
    Between measured points time is linear in layers and in batch. Beyond them nothing is guessed.
    A stage's rate comes from shares that need not be whole, the time of a pass from whole sequences
    (`pipelab.costs`); a stage of which either was not measured is not considered.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> table = {t: {(n, b): n * (5 + b) for n in (1, 4) for b in (1, 16)} for t in ("V100", "H100")}
    >>> costs = Measured(table, tiny.costs)
    >>> cost = costs.stage(tiny.model, tiny.workload, [pl.GPU("H100", 80)], 2, "even")
    >>> round(16 * 2048 / cost.throughput, 3)  # seconds: 2 layers of 5 + 16 ms
    0.042
    """

    milliseconds: Mapping[str, Mapping[tuple[Count, Positive], Positive]]
    needs: Annotated[CostModel, described("a cost model, such as Roofline()")]
    per_layer: Flag = False
    beyond: Literal["refuse", "leave out"] = "refuse"

    def __post_init__(self) -> None:
        if not self.milliseconds:
            expected = "expected at least one type of GPU"
            raise InvalidValue("Measured", [("milliseconds", {}, expected)])
        _ = self._seconds_by_type  # refuses a table with holes now, not when it is first used
        # the table knows no stages that cut layers
        object.__setattr__(self, "needs", self.needs.cutting_no_layer())

    @derived
    def _seconds_by_type(self) -> dict[str, "RegularGridInterpolator"]:
        tables = self.milliseconds.items()
        return {name: _interpolator(name, table, self.per_layer) for name, table in tables}

    # What the table says nothing about.
    for _name in (
        "filling", "filling_number", "link_units", "runs_on", "chunk_tokens", "memory_as_sold", "counting_memory_of",
        "with_link_units", "link_throughput", "memory_parts", "nodes_matter_alone", "mixes_as_slowest",
    ):  # fmt: skip
        vars()[_name] = of_wrapped(_name, "needs")
    del _name

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types that were measured."""
        return tuple(self.milliseconds)

    def check(self, problem: Problem) -> None:
        """Refuse what was not measured; called by `Problem` when it is made.

        Parameters
        ----------
        problem : Problem
            What this model is to serve.

        Raises
        ------
        InvalidValue
            `needs` refuses the problem, the batch is not split evenly, or stages are possible that
            were not measured and `beyond` is "refuse".
        """
        self.needs.check(problem)
        if problem.batch_split != "even":
            expected = "expected 'even': the table says nothing of unequal shares"
            raise InvalidValue("Problem", [("batch_split", problem.batch_split, expected)])
        if self.beyond == "leave out":
            return
        largest = min(problem.max_gpus_per_stage, len(problem.cluster))
        batch = problem.workload.batch_size
        for name in dict.fromkeys(gpu.type for gpu in problem.cluster.kinds):
            layers, batches = self._seconds_by_type[name].grid
            asked = [("batch", "sequences", batches, batch / largest, batch)]
            if not self.per_layer:
                asked.append(("layers", "layers", layers, 1, problem.model.layers))
            for column, unit, known, low, high in asked:
                if low < known[0] or high > known[-1]:
                    expected = (
                        f"{name} was measured for {known[0]:g} to {known[-1]:g} {unit}, and a stage may have "
                        f"{low:g} to {high:g}: measure more, or leave such stages out with beyond='leave out'"
                    )
                    asked_for = f"{low:g} … {high:g}"
                    raise InvalidValue("Problem", [(f"costs.{column}", asked_for, expected)])

    def stage(
        self,
        model: ModelLike,
        workload: Workload,
        gpus: Sequence[GPU],
        layers: range | int,
        batch_split: str,
    ) -> StageCost:
        """Rate, batch shares and memory of one stage; the rate is 0 where it was not measured.

        Parameters
        ----------
        model : Model or Transformer
            Whose layers these are.
        workload : Workload
            What passes through them.
        gpus : sequence of GPU
            Those of the stage.
        layers : range or int
            Numbered from 0; a number stands for so many layers from the first.
        batch_split : {"even"}
            As in `Problem`.

        Returns
        -------
        StageCost
            `throughput` in tokens/s, `batch` in sequences and `memory_gb` in GB (both one number
            per GPU), and `pass_seconds`.
        """
        layers = range(layers) if isinstance(layers, int) else layers
        share = workload.batch_size / len(gpus)
        interval, longest = (
            max(float(self._seconds(g.type, len(layers), b)) for g in gpus)
            for b in (share, whole_sequences(share))
        )
        memory = self.needs.stage(model, workload, gpus, layers, batch_split).memory_gb
        rate = workload.tokens / interval if np.isfinite(longest) else 0.0
        passes = float(pass_time(interval, longest))
        return StageCost(rate, (share,) * len(gpus), memory, pass_seconds=passes)

    def stage_tables(
        self,
        model: ModelLike,
        workload: Workload,
        kinds: Sequence[GPU],
        composition: np.ndarray,
        batch_split: str,
    ) -> StageTables:
        """`stage` for every composition and every kind of span (`model.spans`) at once.

        Parameters
        ----------
        model : Model or Transformer
            With U kinds of span.
        workload : Workload
            What passes through them.
        kinds : sequence of GPU
            The K different GPUs.
        composition : array of int, shape (C, K)
            How many GPUs of each kind a candidate stage has; every row has at least one.
        batch_split : {"even"}
            As in `Problem`.

        Returns
        -------
        StageTables
            `throughput` (C, U) in tokens/s, 0 where it was not measured; `memory_gb` (C, K, U) in
            GB; and `pass_seconds` (C, U).
        """
        share = (workload.batch_size / composition.sum(axis=1))[:, None]
        there = (composition > 0)[:, :, None]

        def longest(b: np.ndarray) -> np.ndarray:
            of_kinds = [self._seconds(kind.type, model.spans.layers, b) for kind in kinds]
            return np.where(there, np.stack(of_kinds, axis=1), 0.0).max(axis=1)

        interval, passes = longest(share), longest(whole_sequences(share))
        memory = self.needs.stage_tables(model, workload, kinds, composition, batch_split).memory_gb
        rate = np.where(np.isfinite(passes), workload.tokens / interval, 0.0)
        return StageTables(rate, memory, pass_time(interval, passes))

    def _seconds(self, gpu_type: str, layers: Any, batch: Any) -> np.ndarray:
        seconds = self._seconds_by_type[gpu_type]
        if self.per_layer:
            return layers * seconds((np.ones_like(layers), batch))
        return seconds((layers, batch))


def load_measured(path: str | Path, needs: CostModel, **options: Any) -> Measured:
    """Load a table of your own stage times as a `Measured`.

    Parameters
    ----------
    path : str or Path
        A CSV file with the columns gpu_type, layers, batch, milliseconds.
    needs : cost model
        As for `Measured`.
    **options
        `per_layer` and `beyond`, as for `Measured`.

    Returns
    -------
    Measured
        Of the types that the file names.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, a value does not fit, or a pair of layers and batch is listed
        twice or is missing; the message names the file, and row and column where it is one row's.
    InvalidValue
        `needs` is no cost model, an option is not one of these, or its value does not fit, or what
        is given is no path.
    """
    table = _table_in(path_of("load_measured", path))
    try:
        return Measured(table, needs, **options)
    except InvalidValue as error:
        if {"needs", *options} & {name for name, _, _ in error.problems}:
            raise
        raise InvalidData(f"{path}: {error}") from None


@checked
class _TimeRow:
    """One row of a table of stage times."""

    gpu_type: str
    layers: Count
    batch: Positive
    milliseconds: Positive


def _table_in(path: Path) -> dict[str, dict[tuple[int, float], float]]:
    """Milliseconds by type of GPU, layers and batch."""
    tables: dict[str, dict[tuple[int, float], float]] = {}
    for row, one in read_objects(path, _TimeRow):
        table = tables.setdefault(one.gpu_type, {})
        if (one.layers, one.batch) in table:
            expected = f"{one.layers} layers with this batch are listed already"
            raise row.error("batch", row.cells["batch"], expected)
        table[one.layers, one.batch] = one.milliseconds
    return tables
