"""A placement's training step: the schedule's chart, and what every GPU holds over time."""

from typing import Any

import numpy as np

from pipelab.display import DOES_NOT_FIT, Figure, counted
from pipelab.engine.timeline.placement_timelines import TrainingTimeline
from pipelab.evaluation import tally
from pipelab.figures.gantts import checked, gantt_parts
from pipelab.figures.theme import (
    BOTTLENECK,
    colour_of_types,
    figure_of,
    finish,
    line,
    plain,
    room_for,
)

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MOST_COLOURED_LINES = 12  # in colour; of more ranks, those that come nearest to their memory
_GREY = "#C8C8C8"


def training_gantt(training: TrainingTimeline, **options: Any) -> Figure:
    """Draw `pl.gantt` of a placement's training step, its ranks named by what they hold.

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
    marks = {"finding": f"{plain(training.problem.name)}: {training.sentence}", **options}
    parts = training_gantt_parts(training, **checked(training.timeline, **marks))
    if options.get("memory") and training.stages is not None:
        parts["layout"]["yaxis2"]["title"]["text"] = "activations (GB)"
    return figure_of(parts)


def training_gantt_parts(training: TrainingTimeline, **options: Any) -> dict:
    """Return the drawing of `training_gantt`, whose options are not checked here."""
    names = [plain(label) for label in training.labels]
    return gantt_parts(training.timeline, **options, names=names)


def training_memory_parts(training: TrainingTimeline) -> dict:
    """Return what the fullest GPU of every rank holds during a step, as a share of its memory.

    Parameters
    ----------
    training : TrainingTimeline
        With a cost model that says what training keeps.

    Returns
    -------
    dict
        "data": a line per rank, and one for its memory; and "layout".

    Examples
    --------
    >>> import pipelab as pl
    >>> cluster = pl.Cluster.from_counts({"A100-SXM-80": 2}, {"A100-SXM-80": 80}, 25)
    >>> model, load = pl.load_model("Llama-2-7B"), pl.Workload(2048, 1)
    >>> problem = pl.Problem(cluster, model, load, pl.Roofline())
    >>> halves = pl.Placement.of([(16, (0,)), (16, (1,))])
    >>> parts = training_memory_parts(pl.timeline_of(problem, halves, training=True))
    >>> [trace["name"] for trace in parts["data"]]
    ['stage 1 · A100-SXM-80', 'stage 2 · A100-SXM-80', "the GPU's memory"]
    """
    needs, limits = training.memory_gb, np.array(training.limits_gb)
    if needs is None:
        return finish([], "The cost model does not say what training keeps in memory", height=120)
    shares = np.array(needs) / limits
    order = np.argsort(-shares, kind="stable")
    named = set(order[:_MOST_COLOURED_LINES].tolist())
    colours = colour_of_types(gpu.type for gpu in training.problem.cluster.gpus)
    # the grey ones first, so that none covers a coloured line; then in the order of the legend
    ranks = [r for r in range(len(needs)) if r not in named] + sorted(named)
    end = training.timeline.makespan
    limit = line("the GPU's memory", [0, end], [100, 100], BOTTLENECK, look={"dash": "dash"})
    fullest = int(order[0])
    held = f"{needs[fullest]:.3g} of {limits[fullest]:.3g} GB"
    title = f"The fullest GPU is in stage {fullest + 1}: {held}"
    over = int((shares > 1).sum())
    if over:
        verb = "do" if over > 1 else "does"
        title = f"{DOES_NOT_FIT.symbol} {counted(over, 'stage')} {verb} not fit. {title}"
    # below, where its lines do not come between title and chart
    legend = {"x": 0, "xanchor": "left", "y": -0.25, "yanchor": "top"}
    return finish(
        [*(_held(training, r, float(limits[r]), r in named, colours) for r in ranks), limit],
        title,
        "weights, gradients and optimizer state are always there; activations come and go",
        x={"title": "time (s)", "range": [0, end]},
        y={
            "title": "memory in use",
            "range": [0, 105 * max(1.0, float(shares.max()))],
            "ticksuffix": " %",
        },
        height=430,
        # below the Gantt chart, on the same time axis
        margin={"l": room_for(training.labels, 13), "t": 66, "b": 100},
        legend=legend,
    )


def _held(
    training: TrainingTimeline, rank: int, limit: float, named: bool, colours: dict[str, str]
) -> dict:
    """Return state and activations of one rank over time, in percent of its GPU's memory."""
    timeline, report = training.timeline, training.evaluation.stages[rank]
    steps = timeline.memory(rank)
    always = (training.memory_gb or ())[rank] - float(steps.amount.max(initial=0.0))
    amount = always + np.append(steps.amount, steps.amount[-1:])
    types = report.gpu_types[0] if len(report.gpu_types) == 1 else tally(report.gpu_types)
    return line(
        f"stage {rank + 1} · {plain(types)}",
        np.append(steps.time, timeline.makespan),
        100 * amount / limit,
        colours[report.gpu_types[0]] if named else _GREY,
        2 if named else 1,
        {"shape": "hv", "dash": _DASHES[rank % 5] if named else "solid"},
        customdata=amount,
        showlegend=named,
        hovertemplate=f"{plain(training.labels[rank])}"
        f"<br>%{{customdata:.4g}} of {limit:.4g} GB at %{{x:.4g}} s"
        f"<br>{always:.4g} GB of them always<extra></extra>",
    )
