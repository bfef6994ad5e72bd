"""sweep(make, points): many problems in one call, on all cores, kept on disk as they are solved."""

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

from pipelab.display import NO_FORMULAS, DataFrame, data_frame, ended_row, table
from pipelab.engine.sweeps.grids_and_mixes import plain, plain_points
from pipelab.engine.sweeps.rows_file import RowsFile, key_of
from pipelab.engine.sweeps.workers import COLUMNS, STATUSES, Jobs, Task, answers
from pipelab.errors import SweepFailed, SweepInterrupted
from pipelab.fields import Flag, Frozen, checked_arguments, described
from pipelab.interrupts import noted_interrupts

_SHOWN_ROWS, _SHOWN_REASON = 20, 70


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Sweep(Frozen):
    """What `sweep` returns: one row per point, in the order of the points.

    Attributes
    ----------
    names : tuple of str
        Names of the values of a point.
    rows : tuple of mappings
        A point's values, then status, outcome, proven_among, throughput_tokens_per_s,
        bound_tokens_per_s, gpus_used, usd_per_hour and usd_per_million_tokens (of the GPUs in use,
        None without prices), stages, bottleneck, placement, seconds, reason. The status is one of
        `Result`, or "failed"; the outcome is "proven", "not proven", "stopped early", "does not
        fit" or "refused". `proven_among` is empty unless the proof is for some placements only,
        such as "one GPU per stage".
    requested : int
        Number of points; a sweep that was interrupted has fewer rows.
    method : str
        Its name.
    seconds : float
        Time of this call; rows that were read from a file cost none.
    """

    names: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    requested: int
    method: str
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether every point has its row."""
        return len(self.rows) == self.requested

    @property
    def sentence(self) -> str:
        """How many points ended how."""
        found = Counter(row["status"] for row in self.rows)
        ended = ", ".join(f"{found[status]:,} {status}" for status in STATUSES if found[status])
        missing = self.requested - len(self.rows)
        open_points = f"; {missing:,} not reached" if missing else ""
        time_taken = f"{self.requested:,} points in {self.seconds:.3g} s"
        return f"{time_taken}: {ended or 'no row'}{open_points}."

    def to_frame(self) -> DataFrame:
        """The rows as a table.

        Returns
        -------
        pandas.DataFrame
            The columns of `rows`; without those of prices where no GPU has one, and without
            `proven_among` where it is empty.
        """
        frame = data_frame(self.rows, columns=[*self.names, *COLUMNS])
        if frame["usd_per_hour"].isna().all():
            frame = frame.drop(columns=["usd_per_hour", "usd_per_million_tokens"])
        return frame if frame["proven_among"].any() else frame.drop(columns="proven_among")

    def __str__(self) -> str:
        return f"{self.method}: {self.sentence}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def _repr_html_(self) -> str:
        more = f" The first {_SHOWN_ROWS} rows:" if len(self.rows) > _SHOWN_ROWS else ""
        left_out = ["status", "proven_among", "bound_tokens_per_s", "placement"]
        shown = self.to_frame().head(_SHOWN_ROWS).drop(columns=left_out, errors="ignore")
        shown["reason"] = [
            textwrap.shorten(reason, _SHOWN_REASON, placeholder=" …") for reason in shown["reason"]
        ]
        shown["outcome"] = [ended_row(row, html=True) for row in self.rows[:_SHOWN_ROWS]]
        head = f"<p class='{NO_FORMULAS}'><b>{escape(self.method)}:</b> {escape(self.sentence)}{more}</p>"
        return head + table(shown, html=("outcome",))


@checked_arguments
def sweep(
    make: Annotated[Callable, described("a function that turns a point's values into a Problem")],
    points: Iterable[Mapping[str, Any]],
    method: str | Callable = "aggregated",
    *,
    path: str | Path | None = None,
    jobs: Jobs = None,
    time_limit: float | None = None,
    progress: Flag = True,
    **options: Any,
) -> Sweep:
    """Solve the problem of every point.

    Parameters
    ----------
    make : function
        `make(**point)` gives a Problem, or a pair of a Problem and further options of the method
        for this point. It may be defined in a notebook.
    points : iterable of mappings
        See `grid` and `mixes`. Values are text, numbers, True, False, None, or lists and dicts of
        these. A point listed twice is solved once.
    method : str or function
        One of `solve`, or a function of a Problem and options that returns a Result.
    path : str or Path, optional
        A CSV file. Each row is added to it as soon as it is computed; the same call later goes
        on where this one ended, and computes again what failed. It knows points, method and options,
        not what `make` does: take another file when that changes. Points may be added, and
        time_limit may change. One sweep at a time should write to it.
    jobs : int, optional
        Number of processes. By default as set by `joblib.parallel_config`, otherwise one for each
        core; `with joblib.parallel_config("dask"):` uses a Dask cluster.
    time_limit : float, optional
        Seconds for each point.
    progress : bool
        Show a progress bar.
    **options
        Options of the method.

    Returns
    -------
    Sweep
        A point whose problem is refused, or whose process dies, is a row with status "failed" and
        its reason; an infeasible one has that status and its reason.

    Raises
    ------
    SweepFailed
        All points, at least two, failed with the same error: repair `make`, and call again. The
        error's `sweep` has all rows.
    SweepInterrupted
        Ctrl-C, or the kernel's interrupt. It is a KeyboardInterrupt; its `sweep` has all rows so
        far.
    InvalidData
        The file belongs to another sweep, or cannot be read or written.
    InvalidValue, UnknownName
        An argument that does not fit.

    Examples
    --------
    >>> import dataclasses, pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> def make(gpus):
    ...     return dataclasses.replace(tiny, max_gpus_per_stage=gpus)
    >>> answer = pl.sweep(make, pl.grid(gpus=(1, 2, 4)), jobs=1, progress=False)
    >>> [(row["gpus"], row["status"], round(row["throughput_tokens_per_s"], 2)) for row in answer.rows]
    [(1, 'optimal', 217.52), (2, 'optimal', 301.78), (4, 'optimal', 345.49)]
    """
    began = time.perf_counter()
    limit = {} if time_limit is None else {"time_limit": time_limit}
    task = Task(make=make, method=method, options=plain({**options, **limit}, "options"))
    names, requested = plain_points(points, COLUMNS)
    keys = [key_of(point) for point in requested]
    store = None if path is None else RowsFile(path, names, task.name, task.options)
    done: dict[tuple[str, ...], dict[str, Any]] = {}

    def so_far() -> Sweep:
        rows = tuple(done[key] for key in keys if key in done)
        return Sweep(
            names=names,
            rows=rows,
            requested=len(keys),
            method=task.name,
            seconds=time.perf_counter() - began,
        )

    try:
        with ExitStack() as stack:
            if store is not None:
                stored = store.read(keys)
                done |= {key: row for key, row in stored.items() if row["status"] != "failed"}
            waiting = {key: p for key, p in zip(keys, requested, strict=True) if key not in done}
            if store is not None and waiting:
                stack.callback(store.close)
                store.open()
            interrupted = stack.enter_context(noted_interrupts(passed_on=True))
            found = stack.enter_context(closing(answers(task, waiting, jobs)))
            for key, row in _shown(found, len(done), len(done) + len(waiting), progress):
                # A solve ends early on Ctrl-C, so this row may be worse for it: it is not kept.
                if interrupted():
                    raise KeyboardInterrupt
                done[key] = row
                if store is not None:
                    store.add(row)
    except KeyboardInterrupt:
        raise _interrupted(so_far(), path) from None
    _refuse_all_failed(so_far())
    return so_far()


def _shown(found: Iterable, done: int, total: int, progress: bool) -> Iterator:
    """Yield the same rows, with a progress bar that counts those that failed."""
    from tqdm.auto import tqdm

    with tqdm(initial=done, total=total, unit="point", disable=not progress) as bar:
        failed = 0
        for key, row in found:
            yield key, row
            failed += row["status"] == "failed"
            if failed:
                bar.set_postfix(failed=failed, refresh=False)
            bar.update()


def _interrupted(partial: Sweep, path: Any) -> SweepInterrupted:
    kept = "they are in this error's .sweep; with path=… a sweep keeps them and goes on where it stopped"
    if path:
        kept = f"they are kept in {path}, and the same call goes on from there"
    return SweepInterrupted(
        f"stopped with {len(partial.rows):,} of {partial.requested:,} rows; {kept}", partial
    )


def _refuse_all_failed(whole: Sweep) -> None:
    ends = {(row["status"], row["reason"]) for row in whole.rows}
    (status, reason), *others = ends
    if whole.requested < 2 or others or status != "failed":
        return
    all_failed = f"all {whole.requested:,} points failed with the same error: {reason}"
    raise SweepFailed(f"{all_failed}. Once repaired, make the same call", whole)
