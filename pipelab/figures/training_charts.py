"""A placement's training step: the schedule's chart, and what every GPU holds over time."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.display import DOES_NOT_FIT
from pipelab.evaluation import tally
from pipelab.figures.gantt_chart import GanttView, gantt, gantt_parts
from pipelab.figures.theme import BOTTLENECK, GRID, colour_of_types, plain, room_for

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.engine.timeline.placed import TrainingTimeline

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MOST_LINES = 12  # in colour; of more ranks, those that come nearest to their memory
_OTHERS = "#C8C8C8"


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
    if options.get("memory") and training.stages is not None:
        figure.layout.yaxis2.title.text = "activations (GB)"
    return figure


def training_gantt_parts(training: "TrainingTimeline", finding: str) -> dict:
    """The same as plain dicts, for a chart that is redrawn often; `finding` is its title."""
    parts = gantt_parts(training.timeline, GanttView(finding=finding))
    axis = parts["layout"]["yaxis"]
    axis["ticktext"] = [plain(training.labels[rank]) for rank in axis["tickvals"]]
    parts["layout"]["margin"] = {"l": _left(training)}
    return parts


def training_memory_parts(training: "TrainingTimeline") -> dict:
    """What the fullest GPU of every rank holds during a step, as a share of its memory.

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
    needs, limits = training.memory_gb, memory_limits(training)
    if needs is None:
        title = "The cost model does not say what training keeps in memory"
        return {"data": [], "layout": _memory_layout(training, 1.0, title, "")}
    shares = np.array(needs) / limits
    order = np.argsort(-shares, kind="stable")
    named = set(order[:_MOST_LINES].tolist())
    colours = colour_of_types(gpu.type for gpu in training.problem.cluster.gpus)
    # the grey ones first, so that none covers a coloured line; then in the order of the legend
    ranks = [r for r in range(len(needs)) if r not in named] + sorted(named)
    traces = [_held(training, rank, float(limits[rank]), rank in named, colours) for rank in ranks]
    end = training.timeline.makespan
    traces.append({
        "type": "scatter", "name": "the GPU's memory", "mode": "lines", "x": [0, end], "y": [100, 100],
        "line": {"color": BOTTLENECK, "width": 2, "dash": "dash"}, "hoverinfo": "skip",
    })  # fmt: skip
    fullest = int(order[0])
    title = f"The fullest GPU is in stage {fullest + 1}: {needs[fullest]:.3g} of {limits[fullest]:.3g} GB"
    over = int((shares > 1).sum())
    if over:
        several = "stages do" if over > 1 else "stage does"
        title = f"{DOES_NOT_FIT.symbol} {over} {several} not fit. {title}"
    note = "weights, gradients and optimizer state are always there; activations come and go"
    return {
        "data": traces,
        "layout": _memory_layout(training, float(shares.max()), title, note),
    }


def memory_limits(training: "TrainingTimeline") -> np.ndarray:
    """Memory of each rank's smallest GPU, in GB, shape (ranks,)."""
    return np.array([min(report.memory_limit_gb) for report in training.evaluation.stages])


def _held(
    training: "TrainingTimeline", rank: int, limit: float, named: bool, colours: dict[str, str]
) -> dict:
    """State and activations of one rank over time, in percent of its GPU's memory."""
    timeline, report = training.timeline, training.evaluation.stages[rank]
    steps = timeline.memory(rank)
    whole = (training.memory_gb or ())[rank]
    always = whole - float(steps.amount.max(initial=0.0))
    amount = always + np.append(steps.amount, steps.amount[-1:])
    types = report.gpu_types[0] if len(report.gpu_types) == 1 else tally(report.gpu_types)
    return {
        "type": "scatter", "mode": "lines", "name": f"stage {rank + 1} · {plain(types)}",
        "x": np.append(steps.time, timeline.makespan), "y": 100 * amount / limit,
        "customdata": amount, "showlegend": named,
        "line": {
            "shape": "hv", "width": 2 if named else 1, "dash": _DASHES[rank % 5] if named else "solid",
            "color": colours[report.gpu_types[0]] if named else _OTHERS,
        },
        "hovertemplate": f"{plain(training.labels[rank])}<br>%{{customdata:.4g}} of {limit:.4g} GB at %{{x:.4g}} s"
                         f"<br>{always:.4g} GB of them always<extra></extra>",
    }  # fmt: skip


def _memory_layout(training: "TrainingTimeline", most: float, title: str, note: str) -> dict:
    return {
        "title": {"text": f"{title}<br><sup>{note}</sup>"}, "height": 430, "hovermode": "closest",
        "margin": {"l": _left(training), "t": 66},  # below the Gantt chart, on the same time axis
        # below, where its lines do not come between title and chart
        "legend": {"x": 0, "xanchor": "left", "y": -0.25, "yanchor": "top"},
        "xaxis": {
            "range": [0, training.timeline.makespan], "title": {"text": "time (s)"}, "gridcolor": GRID,
            "zeroline": False,
        },
        "yaxis": {
            "range": [0, 105 * max(1.0, most)], "title": {"text": "memory in use"}, "ticksuffix": " %",
            "gridcolor": GRID, "zeroline": False, "ticklabelstandoff": 8,
        },
    }  # fmt: skip


def _left(training: "TrainingTimeline") -> int:
    """Pixels of the left margin."""
    return room_for(training.labels, 12)
