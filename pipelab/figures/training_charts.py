"""A placement's training step as the schedule's chart."""

from typing import TYPE_CHECKING, Any

from pipelab.figures.gantt_chart import gantt
from pipelab.figures.theme import plain

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.engine.timeline.training import TrainingTimeline


def training_gantt(training: "TrainingTimeline", **options: Any) -> "Figure":
    """`pl.gantt` of a placement's training step, its ranks named by what they hold.

    Parameters
    ----------
    training : TrainingTimeline
        Made by `pl.timeline_of(…, training=True)`.
    **options
        As for `pl.gantt`.

    Returns
    -------
    plotly.graph_objects.Figure
        In seconds.

    Raises
    ------
    InvalidValue
        An option's value does not fit.
    TypeError
        The option is unknown.
    """
    figure = gantt(
        training.timeline,
        **{"finding": f"{plain(training.problem.name)}: {training.sentence}", **options},
    )
    axis = figure.layout.yaxis
    axis.update(ticktext=[plain(training.labels[rank]) for rank in axis.tickvals], automargin=True)
    return figure
