"""A proven schedule as a Gantt chart whose title says what is proven."""

from typing import TYPE_CHECKING, Any

from pipelab.engine.best_schedules import BestSchedule
from pipelab.errors import InvalidValue
from pipelab.figures.gantt_chart import gantt

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def plot_best_schedule(best: BestSchedule, **options: Any) -> "Figure":
    """When every rank does what in the shortest schedule.

    Parameters
    ----------
    best : BestSchedule
        As `pl.best_schedule` returned it.
    **options
        As `gantt` takes them.

    Returns
    -------
    plotly.graph_objects.Figure

    Raises
    ------
    InvalidValue
        There is no schedule to draw.

    Examples
    --------
    >>> import pipelab as pl
    >>> best = pl.best_schedule(pl.StageCosts(1, 1, 1), ranks=2, microbatches=4)
    >>> pl.plot(best).layout.title.text.split("<br>")[0]
    'No schedule takes less than 13: this one takes 13'
    """
    if best.timeline is None:
        raise InvalidValue("plot", [("best", best.sentence, "expected one with a schedule")])
    least, value = f"{best.bound:,.6g}", f"{best.value:,.6g}"
    options.setdefault("finding", f"No schedule takes less than {least}: this one takes {value}")
    return gantt(best.timeline, **options)
