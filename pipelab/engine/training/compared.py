"""Which published rule is best for one placement."""

from typing import TYPE_CHECKING, Any

from pipelab.engine.timeline import training_timeline
from pipelab.engine.training.orders import TRAINED_BY
from pipelab.errors import InvalidValue
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result

if TYPE_CHECKING:
    from pandas import DataFrame


def schedules_for(problem: Problem, placement: Placement | Result, **options: Any) -> "DataFrame":
    """A training step of one placement under every published rule, the best first.

    Parameters
    ----------
    problem : Problem
        With a workload of training.
    placement : Placement or Result
        What runs as a pipeline.
    **options
        As for `pl.timeline_of`: `recompute`, `bytes_per_parameter`, `microbatches`, …

    Returns
    -------
    pandas.DataFrame
        One row per rule: `schedule`, `chunks` (stages per rank), `seconds_per_step`,
        `tokens_per_s`, `mfu` (None where the cost model counts no FLOPs), `bubble` (idle share of
        all ranks' time), `memory_needed_gb` (of the rank with least to spare, NaN where the cost
        model does not say), `fits`, and the `reason` where it
        does not, or where there is no such schedule on so many ranks. What fits comes first.

    Raises
    ------
    InvalidPlacement, InvalidValue
        As `pl.timeline_of`, but for rules that do not exist here.

    Examples
    --------
    >>> import dataclasses, pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> load = dataclasses.replace(tiny.workload, phase="training", microbatches=8)
    >>> problem = dataclasses.replace(tiny, workload=load)
    >>> table = schedules_for(problem, pl.Placement.of([(2, (0,)), (2, (1,))]))
    >>> table.schedule[0], bool(table.fits.all())
    ('ZBV', True)
    """
    import pandas as pd

    rows = []
    for name in TRAINED_BY:
        row: dict[str, Any] = {"schedule": name}
        try:
            step = training_timeline(problem, placement, schedule=name, **options)
        except InvalidValue as error:
            if not str(error).startswith("schedule"):
                raise
            rows.append(row | {"fits": False, "reason": str(error)})
            continue
        timeline = step.timeline
        most = None
        if step.memory_gb is not None:
            most = max(zip(step.memory_gb, step.limits_gb, strict=True), key=lambda x: x[0] / x[1])
        rows.append(
            row
            | {
                "chunks": timeline.schedule.chunks,
                "seconds_per_step": timeline.iteration_time,
                "tokens_per_s": step.rate,
                "mfu": step.mfu,
                "bubble": timeline.bubble_fraction,
                "memory_needed_gb": None if most is None else most[0],
                "fits": not step.shortfall,
                "reason": step.shortfall,
            }
        )
    columns = (
        "schedule", "chunks", "seconds_per_step", "tokens_per_s", "mfu", "bubble", "memory_needed_gb", "fits",
        "reason",
    )  # fmt: skip
    frame = pd.DataFrame(rows, columns=columns)
    frame["memory_needed_gb"] = frame["memory_needed_gb"].astype(float)
    order = frame.assign(misfit=~frame["fits"]).sort_values(
        ["misfit", "seconds_per_step"], kind="stable"
    )
    return order.drop(columns="misfit").reset_index(drop=True)
