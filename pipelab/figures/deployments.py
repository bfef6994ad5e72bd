"""A deployment as a picture: each sort of pipeline a band of its GPUs, with how many there are."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pipelab.display import counted
from pipelab.engine.deployments.result import Deployment, Pipeline
from pipelab.fields import given
from pipelab.figures.live import figure_of
from pipelab.figures.theme import GRID, colour_of_types, ink_on, plain, room_for
from pipelab.placement import Stage, named_layers
from pipelab.problem import Problem

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_BAND = 44  # pixels
_LETTER = 0.011  # of the width of all layers, for each letter of a name


def plot_deployment(deployment: Deployment) -> "Figure":
    """Pipelines as bands: layers across, coloured by the type of GPU, identical pipelines once.

    Parameters
    ----------
    deployment : Deployment
        As `deploy` returns it.

    Returns
    -------
    plotly.graph_objects.Figure
        Two traces; hover gives stages, rate and batch.
    """
    return figure_of(deployment_parts(deployment))


def deployment_parts(deployment: Deployment | None, headline: str = "") -> dict:
    """The same as plain dicts, for a chart that stays on the page.

    Parameters
    ----------
    deployment : Deployment or None
        None: none is known yet.
    headline : str
        The title; by default the answer in a line.

    Returns
    -------
    dict
        "data": two traces (stages, names of their GPUs), and "layout".

    Examples
    --------
    >>> parts = deployment_parts(None, "Several pipelines: being solved …")
    >>> len(parts["data"]), parts["layout"]["title"]["text"]
    (2, 'Several pipelines: being solved …')
    """
    pipelines = deployment.pipelines if deployment else ()
    problem = deployment.problem if deployment else None
    rows: list[dict] = []
    names: list[dict] = []
    for y, pipeline in enumerate(pipelines):
        rows += _bars(given(problem), pipeline, y)
        names += _names(given(problem), pipeline, y)
    labels = [f"{p.count} × {_short(p.throughput)} tokens/s" for p in pipelines]
    colours = [row["colour"] for row in rows]
    layers = deployment.problem.model.layers if deployment else 1
    title = headline or (_title(deployment) if deployment else "")
    return {
        "data": [
            {
                "type": "bar", "name": "stages", "orientation": "h", "width": 0.8,
                "y": [row["y"] for row in rows], "x": [row["layers"] for row in rows],
                "base": [row["start"] + 0.5 for row in rows],
                "hovertext": [row["hover"] for row in rows], "hoverinfo": "text",
                "marker": {"color": colours, "line": {"color": "white", "width": 1}},
            },
            {
                "type": "scatter", "name": "GPUs", "mode": "text", "x": [n["x"] for n in names],
                "y": [n["y"] for n in names], "text": [n["text"] for n in names],
                "textfont": {"color": [n["ink"] for n in names] or "black"}, "hoverinfo": "skip",
            },
        ],
        "layout": {
            "title": {"text": title}, "height": 130 + _BAND * max(1, len(pipelines)), "showlegend": False,
            "margin": {"t": 66, "b": 52, "l": room_for(labels, 12)}, "barmode": "overlay", "bargap": 0.15,
            "xaxis": {
                "title": {"text": "decoder layer"}, "range": [0.5, layers + 0.5], "gridcolor": GRID, "zeroline": False,
                "dtick": max(1, -(-layers // 20)), "tick0": 1,
            },
            "yaxis": {
                "tickvals": list(range(len(labels))), "ticktext": labels,
                "range": [max(len(labels), 1) - 0.5, -0.5], "showgrid": False, "zeroline": False,
                "ticklabelstandoff": 8, "tickfont": {"size": 12},
            },
        },
    }  # fmt: skip


def _short(rate: float) -> str:
    """Four digits, or whole numbers above that."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def _bars(problem: Problem, pipeline: Pipeline, y: int) -> list[dict]:
    """One bar for each stage of a pipeline."""
    colours = colour_of_types(gpu.type for gpu in problem.cluster.gpus)
    rows = []
    for i, (stage, types) in enumerate(_stages(problem, pipeline), start=1):
        rows.append(
            {
                "y": y,
                "layers": len(stage.layers),
                "start": stage.layers.start,
                "colour": colours[types[0]],
                "hover": f"<b>{pipeline.count} × this pipeline</b>, {pipeline.throughput:,.6g} tokens/s each"
                f"<br>batch {pipeline.workload.batch_size}{_in_flight(pipeline)}"
                f"<br>stage {i}: {named_layers(stage.layers)} on {plain(_named(types))}",
            }
        )
    return rows


def _in_flight(pipeline: Pipeline) -> str:
    number = pipeline.workload.in_flight
    return "" if number is None else f", {number} in flight"


def _names(problem: Problem, pipeline: Pipeline, y: int) -> list[dict]:
    """The GPUs of every stage at its middle; of stages too narrow for that, of the run of equal ones."""
    names = []
    layers, colours = problem.model.layers, colour_of_types(g.type for g in problem.cluster.gpus)
    for types, run in groupby(_stages(problem, pipeline), key=lambda pair: pair[1]):
        stages, name = [stage for stage, _ in run], plain(_named(types))
        spans = [(stage.layers.start, stage.layers.stop) for stage in stages]
        if min(end - begin for begin, end in spans) / layers < _LETTER * len(name):
            spans = [(spans[0][0], spans[-1][1])]
            if len(stages) > 1:
                name = f"{len(stages)} × ({name})" if len(types) > 1 else f"{len(stages)} × {name}"
        ink = ink_on(colours[types[0]])
        names += [
            {"x": (begin + end + 1) / 2, "y": y, "text": name, "ink": ink}
            for begin, end in spans
            if (end - begin) / layers >= _LETTER * len(name)
        ]
    return names


def _stages(problem: Problem, pipeline: Pipeline) -> list[tuple[Stage, tuple[str, ...]]]:
    """Each stage with the types of its GPUs."""
    return [
        (stage, tuple(problem.cluster.gpus[g].type for g in stage.gpus))
        for stage in pipeline.placement.stages
    ]


def _named(types: Sequence[str]) -> str:
    return " + ".join(
        f"{len(list(run))} {gpu_type}" if types.count(gpu_type) > 1 else gpu_type
        for gpu_type, run in groupby(sorted(types))
    )


def _title(deployment: Deployment) -> str:
    name = plain(deployment.problem.name)
    if not deployment.pipelines:
        return f"{name}: no deployment" + (" exists" if deployment.status == "infeasible" else "")
    text = f"{name}: {deployment.throughput:,.6g} tokens/s with {counted(deployment.count, 'pipeline')}"
    if deployment.at_least:
        text += f", {deployment.usd_per_hour:,.4g} $ per hour"
    if deployment.status == "optimal":
        return text + ", proven best"
    far = f", the best at most {deployment.gap:.1%} better" if deployment.gap is not None else ""
    return text + far
