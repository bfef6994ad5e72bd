"""What every GPU keeps in training: state, activations in flight, and where its memory ends."""

from typing import TYPE_CHECKING

from pipelab.course.figures.rows import Block, Row, plot_rows
from pipelab.display import counted
from pipelab.errors import InvalidValue
from pipelab.figures.theme import NEUTRAL_LIGHT, TYPE_COLOURS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from pipelab.engine.timeline.training import TrainingTimeline

ACTIVATIONS = TYPE_COLOURS[0]
_NARROW = 0.1  # of the picture: too narrow for more than a number


def plot_training_memory(step: "TrainingTimeline", finding: str = "") -> "go.Figure":
    """A row per stage: state of its parameters, then activations at their peak; a line at the end of memory.

    Parameters
    ----------
    step : TrainingTimeline
        Made by `pl.timeline_of(…, training=True)`, with a cost model that says what training keeps.
    finding : str
        The title; by default how many stages do not fit, and how much of all is state.

    Returns
    -------
    plotly.graph_objects.Figure
        In GB; stages that do not fit are framed.

    Raises
    ------
    InvalidValue
        The cost model does not say what training keeps.

    Examples
    --------
    >>> import pipelab as pl
    >>> cluster = pl.Cluster.from_counts({"A40": 2}, {"A40": 48}, 12.5)
    >>> model, load = pl.load_model("Llama-3-8B"), pl.Workload(2048, 1)
    >>> problem = pl.Problem(cluster, model, load, pl.Roofline())
    >>> halves = pl.Placement.of([(16, (0,)), (16, (1,))])
    >>> figure = plot_training_memory(pl.timeline_of(problem, halves, 4, training=True))
    >>> figure.layout.title.text.split("<br>")[0]
    '1F1B: 2 of 2 stages do not fit; 89% of what they keep is state'
    """
    if step.stages is None or step.memory_gb is None:
        expected = "expected a cost model that says what training keeps, such as Roofline"
        raise InvalidValue("plot_training_memory", [("step", step.problem.name, expected)])
    limits = step.to_frame()["memory_offered_gb"].tolist()
    rows, lacking, widest = [], 0, max(*limits, *step.memory_gb)
    for name, cost, need, held, limit in zip(
        step.labels,
        step.stages,
        step.memory_gb,
        step.timeline.peak_in_flight,
        limits,
        strict=True,
    ):
        kept = need - cost.state_gb
        blocks = [
            Block(cost.state_gb, NEUTRAL_LIGHT, f"state {cost.state_gb:.0f}"),
            Block(kept, ACTIVATIONS, f"{held} in flight" if kept > _NARROW * widest else f"{held}"),
        ]
        lacking += need > limit
        rows.append(Row(name, blocks, mark=limit, wrong=need > limit))
    state = sum(cost.state_gb for cost in step.stages) / sum(step.memory_gb)
    fits = f"{lacking} of {counted(len(rows), 'stage')} do not fit" if lacking else "all fits"
    title = (
        finding or f"{step.timeline.schedule.name}: {fits}; {state:.0%} of what they keep is state"
    )
    return plot_rows(rows, title, "GB", "the line is the end of the GPU's memory")
