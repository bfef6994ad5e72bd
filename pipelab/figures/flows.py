"""A flow as a picture: the layers that each stage holds, and what goes from stage to stage."""

from collections import defaultdict

from pipelab.display import Figure, counted, rate
from pipelab.engine.flows.result import Flow
from pipelab.figures import theme
from pipelab.placement import named_layers

_TALL_PIXELS, _LOW_PIXELS = 26, 15  # a row of few stages, and of many
_MOST_TALL_ROWS = 16
_WIDEST_LINK_PIXELS = 8
_SLANT = 0.016  # of all layers, so that the lines of one stage fan out
_FEW_LAYERS = 20  # of which every number is written


def plot_flow(flow: Flow) -> Figure:
    """Draw a flow: layers across, stages down, and lines as wide as what they carry.

    Parameters
    ----------
    flow : Flow
        As `flow` returns it.

    Returns
    -------
    plotly.graph_objects.Figure
        Hover gives each stage's rate, what it carries, and what it keeps in flight; a line ends at the
        layer at which microbatches enter.
    """
    stages, gpus, layers = flow.stages, flow.problem.cluster.gpus, flow.problem.model.layers
    types = [gpus[stage.gpus[0]].type for stage in stages]
    colours = theme.colour_of_types(gpu.type for gpu in gpus)
    bars = theme.bar(
        "stages",
        list(range(len(stages))),
        [stage.layers.start + 0.5 for stage in stages],
        [stage.layers.stop + 0.5 for stage in stages],
        hovertext=_hovers(flow),
        hoverinfo="text",
        marker={
            "color": [colours[gpu_type] for gpu_type in types],
            "line": {"color": "white", "width": 1},
        },
    )
    widths: dict[int, list[tuple[float, float, float, float]]] = defaultdict(list)
    most = max(flow.links.values(), default=1.0)
    for (v, w), carried in flow.links.items():
        if min(v, w) >= 0:
            end = stages[v].layers.stop + 0.5
            widths[max(1, round(_WIDEST_LINK_PIXELS * carried / most))].append((end, v, end, w))
    lines = [
        theme.line(
            f"{width / _WIDEST_LINK_PIXELS * most:,.0f} tokens/s",
            [x for a, _, b, _ in ends for x in (a, b + _SLANT * layers, None)],
            [y for _, v, _, w in ends for y in (v, w, None)],
            theme.NEUTRAL,
            width,
            opacity=0.75,
        )
        for width, ends in sorted(widths.items())
    ]
    names = [
        f"{theme.plain(gpu_type)} · {', '.join(map(str, stage.gpus))}"
        for gpu_type, stage in zip(types, stages, strict=True)
    ]
    parts = theme.finish(
        [bars, *lines],
        _title(flow),
        "a line goes from a stage's last layer to the next stage, as wide as what it carries",
        x={
            "title": "layer",
            "range": [0.4, layers + 0.6],
            "dtick": 1 if layers <= _FEW_LAYERS else 10,
        },
        y=theme.rows(names, tickfont={"size": 12 if len(names) <= _MOST_TALL_ROWS else 9}),
        height=130
        + (_TALL_PIXELS if len(names) <= _MOST_TALL_ROWS else _LOW_PIXELS) * max(1, len(names)),
        showlegend=False,
        bargap=0.15,
    )
    return theme.figure_of(parts)


def _hovers(flow: Flow) -> list[str]:
    known = flow.evaluation
    if known is None:
        return []
    stages = zip(known.stages, known.carried, known.needed, known.held, strict=True)
    memory = flow.memory_for is None
    return [
        f"<b>{named_layers(report.stage.layers)}</b> on {theme.plain(', '.join(report.gpu_types))}"
        f"<br>{carried:,.6g} of {report.throughput:,.6g} tokens/s"
        + (f"<br>{needed:.3g} in flight, memory for {held}" if memory else "")
        for report, carried, needed, held in stages
    ]


def _title(flow: Flow) -> str:
    name = theme.plain(flow.problem.name)
    if not flow.ways:
        return f"{name}: no flow" + (" exists" if flow.status == "infeasible" else "")
    text = f"{name}: {rate(flow.throughput or 0.0)} on {counted(len(flow.ways), 'way')}"
    return text + theme.distance_from_best(flow)
