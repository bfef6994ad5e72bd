"""A deployment as a picture: each sort of pipeline a band of its GPUs, with how many there are."""

from collections.abc import Sequence
from itertools import groupby

from pipelab.display import Figure, counted, rate
from pipelab.engine.deployments.result import Deployment, Pipeline
from pipelab.figures import theme
from pipelab.figures.placements import layer_axis
from pipelab.placement import Stage, named_layers

_BAND_PIXELS = 44
_LETTER_SHARE = 0.014  # of the width of all layers, for each letter of a name
_Stages = Sequence[tuple[Stage, tuple[str, ...]]]  # each with the types of its GPUs


def plot_deployment(deployment: Deployment) -> Figure:
    """Draw pipelines as bands: layers across, coloured by the type of GPU, identical pipelines once.

    Parameters
    ----------
    deployment : Deployment
        As `deploy` returns it.

    Returns
    -------
    plotly.graph_objects.Figure
        Two traces; hover gives stages, rate and batch.
    """
    return theme.figure_of(deployment_parts(deployment))


def deployment_parts(deployment: Deployment | None, title: str = "") -> dict:
    """Return the drawing of a deployment, for `figure_of` or a chart that stays on the page.

    Parameters
    ----------
    deployment : Deployment or None
        None: none is known yet.
    title : str
        By default the answer in a line.

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
    bars, names, labels, layers = [], [], [], 1
    if deployment is not None:
        gpus, layers = deployment.problem.cluster.gpus, deployment.problem.model.layers
        colours = theme.colour_of_types(gpu.type for gpu in gpus)
        for y, pipeline in enumerate(deployment.pipelines):
            labels.append(f"{pipeline.count} × {rate(pipeline.throughput)}")
            stages = [
                (stage, tuple(gpus[g].type for g in stage.gpus))
                for stage in pipeline.placement.stages
            ]
            for i, (stage, types) in enumerate(stages, start=1):
                place = (y, len(stage.layers), stage.layers.start + 0.5, colours[types[0]])
                bars.append((*place, _hover(pipeline, i, stage, types)))
            for x, name, types in _names(stages, layers):
                names.append((x, y, name, theme.ink_on(colours[types[0]])))
        title = title or _title(deployment)
    lanes, widths, starts, fills, hovers = zip(*bars, strict=True) if bars else [()] * 5
    xs, ys, texts, inks = zip(*names, strict=True) if names else [()] * 4
    stages_of = {
        "type": "bar",
        "name": "stages",
        "orientation": "h",
        "width": 0.8,
        "y": lanes,
        "x": widths,
        "base": starts,
        "hovertext": hovers,
        "hoverinfo": "text",
        "marker": {"color": fills, "line": {"color": "white", "width": 1}},
    }
    ink = {"color": inks or "black"}
    names_of = theme.points("GPUs", xs, ys, "text", text=texts, textfont=ink, hoverinfo="skip")
    return theme.finish(
        [stages_of, names_of],
        title,
        x=layer_axis(layers) | {"visible": bool(labels)},
        y=theme.rows(labels, tickfont={"size": 12}),
        height=110 + _BAND_PIXELS * max(1, len(labels)),
        showlegend=False,
        barmode="overlay",
        bargap=0.15,
    )


def _hover(pipeline: Pipeline, number: int, stage: Stage, types: Sequence[str]) -> str:
    load = pipeline.workload
    flight = "" if load.in_flight is None else f", {load.in_flight} in flight"
    return (
        f"<b>{pipeline.count} × this pipeline</b>, {pipeline.throughput:,.6g} tokens/s each"
        f"<br>batch {load.batch_size}{flight}"
        f"<br>stage {number}: {named_layers(stage.layers)} on {theme.plain(_named(types))}"
    )


def _names(stages: _Stages, layers: int) -> list[tuple[float, str, tuple[str, ...]]]:
    """Return the GPUs of every stage at its middle; of stages too narrow, of the run of identical ones."""
    names = []
    for types, run in groupby(stages, key=lambda pair: pair[1]):
        name, spans = theme.plain(_named(types)), [(s.layers.start, s.layers.stop) for s, _ in run]
        if min(end - begin for begin, end in spans) / layers < _LETTER_SHARE * len(name):
            if len(spans) > 1:
                name = f"{len(spans)} × ({name})" if len(types) > 1 else f"{len(spans)} × {name}"
            spans = [(spans[0][0], spans[-1][1])]
        names += [
            ((begin + end + 1) / 2, name, types)
            for begin, end in spans
            if (end - begin) / layers >= _LETTER_SHARE * len(name)
        ]
    return names


def _named(types: Sequence[str]) -> str:
    return " + ".join(
        f"{types.count(name)} {name}" if types.count(name) > 1 else name
        for name in sorted({*types})
    )


def _title(deployment: Deployment) -> str:
    name = theme.plain(deployment.problem.name)
    if not deployment.pipelines:
        return f"{name}: no deployment" + (" exists" if deployment.status == "infeasible" else "")
    pipelines = counted(deployment.count, "pipeline")
    text = f"{name}: {rate(deployment.throughput or 0.0)} with {pipelines}"
    if deployment.at_least:
        text += f", {deployment.usd_per_hour:,.4g} $ per hour"
    return text + theme.distance_from_best(deployment)
