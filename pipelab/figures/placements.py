"""A placement as a picture: layers across, GPUs down, the bottleneck framed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipelab.display import counted
from pipelab.evaluation import Evaluation, evaluate
from pipelab.figures.plan import what_limits
from pipelab.figures.theme import BOTTLENECK, GRID, colour_of_types, ink_on, plain, template
from pipelab.placement import Placement, show_layers
from pipelab.problem import Problem
from pipelab.solving import Result, placement_in

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.evaluation import StageReport


def plot_result(result: Result) -> "Figure":
    """The placement of a result, as `plot_placement` draws it."""
    return plot_placement(result.problem, result)


def plot_placement(problem: Problem, placement: Placement | Result | None = None) -> "Figure":
    """A placement: layers across, GPUs down, each stage a block per GPU, the bottleneck framed.

    Parameters
    ----------
    problem : Problem
        Whose cluster is drawn.
    placement : Placement or Result, optional
        Must be valid. Without one, the empty cluster is drawn.

    Returns
    -------
    plotly.graph_objects.Figure
        One bar trace per GPU type in use; hover gives rate, batch share and memory.

    Raises
    ------
    InvalidPlacement
        The placement is not valid for this problem.
    InvalidValue
        The argument is not a placement.
    """
    import plotly.graph_objects as go

    placement = None if placement is None else placement_in(placement, "plot_placement")
    evaluation = evaluate(problem, placement) if placement else None
    shown = _shown_gpus(problem, placement)
    busy = set(placement.gpus) if placement else set()
    labels = [
        f"GPU {g} · {plain(problem.cluster.gpus[g].type)}" + ("" if g in busy else " (idle)")
        for g in shown
    ]
    row = {g: position for position, g in enumerate(shown)}
    colours = colour_of_types(gpu.type for gpu in problem.cluster.gpus)
    figure = go.Figure()
    for gpu_type, colour in colours.items():
        _add_blocks(figure, evaluation, gpu_type, colour, row, problem.model.layers)
    if evaluation:
        _mark_bottlenecks(figure, evaluation, row)
    figure.update_layout(
        template=template(),
        title=_placement_title(problem, evaluation),
        height=150 + 34 * max(2, len(shown)),
        bargap=0.2,
        showlegend=True,
        xaxis={
            "title": {"text": "decoder layer"}, "range": [0.5, problem.model.layers + 0.5],
            "gridcolor": GRID, "dtick": max(1, -(-problem.model.layers // 20)), "tick0": 1, "zeroline": False,
        },
        yaxis={
            "tickvals": list(range(len(labels))), "ticktext": labels, "range": [len(labels) - 0.5, -0.5],
            "showgrid": False, "zeroline": False, "automargin": True, "ticklabelstandoff": 8,
        },
    )  # fmt: skip
    _note_unused(figure, problem, placement, shown)
    return figure


def _shown_gpus(problem: Problem, placement: Placement | None) -> list[int]:
    """All GPUs of a small cluster; of a large one, those in use, in pipeline order."""
    everyone = list(range(len(problem.cluster)))
    return everyone if len(everyone) <= 16 or placement is None else list(placement.gpus)


def _add_blocks(
    figure: "Figure",
    evaluation: Evaluation | None,
    gpu_type: str,
    colour: str,
    row: Mapping[int, int],
    layers: int,
) -> None:
    import plotly.graph_objects as go

    blocks = [
        (i, report, j)
        for i, report in enumerate(evaluation.stages if evaluation else ())
        for j, name in enumerate(report.gpu_types)
        if name == gpu_type
    ]
    figure.add_trace(
        go.Bar(
            name=plain(gpu_type),
            orientation="h",
            y=[row[r.stage.gpus[j]] for _, r, j in blocks],
            base=[r.stage.layers.start + 0.5 for _, r, _ in blocks],
            x=[len(r.stage.layers) for _, r, _ in blocks],
            marker={"color": colour, "line": {"color": "white", "width": 1}},
            # A narrow block has room for the number alone, and the narrowest has it beside.
            text=[
                f"stage {i + 1}" if len(r.stage.layers) > layers / 20 else f"{i + 1}"
                for i, r, _ in blocks
            ],
            textposition=[
                "inside" if len(r.stage.layers) > layers / 60 else "outside" for _, r, _ in blocks
            ],
            cliponaxis=False,
            textangle=0,
            insidetextanchor="middle",
            textfont={"color": ink_on(colour)},
            hovertext=[_block_hover(i, r, j) for i, r, j in blocks],
            hoverinfo="text",
        )
    )


def _block_hover(i: int, report: "StageReport", j: int) -> str:
    return (
        f"<b>stage {i + 1}: layers {show_layers(report.stage.layers)}</b><br>"
        f"GPU {report.stage.gpus[j]} ({plain(report.gpu_types[j])}), {len(report.stage.gpus)} in this stage<br>"
        f"stage rate {report.throughput:,.6g} tokens/s<br>"
        f"batch share {report.batch[j]:.4g} sequences<br>"
        f"memory {report.memory_gb[j]:.4g} of {report.memory_limit_gb[j]:g} GB"
    )


def _mark_bottlenecks(figure: "Figure", evaluation: Evaluation, row: Mapping[int, int]) -> None:
    """Frame the slowest stages, and join the GPUs of the slowest links; labels are beside both."""
    import plotly.graph_objects as go

    xs, ys, texts = [], [], []
    for i, report in enumerate(evaluation.stages):
        if f"stage {i + 1}" not in evaluation.bottlenecks:
            continue
        for g in report.stage.gpus:
            edges = {"x0": report.stage.layers.start + 0.5, "x1": report.stage.layers.stop + 0.5}
            figure.add_shape(
                type="rect", **edges, y0=row[g] - 0.4, y1=row[g] + 0.4,
                line={"color": BOTTLENECK, "width": 4}, layer="above",
            )  # fmt: skip
    for i, link in enumerate(evaluation.links):
        if f"link {i + 1}→{i + 2}" not in evaluation.bottlenecks:
            continue
        boundary = evaluation.stages[i].stage.layers.stop + 0.5
        xs += [boundary, boundary, None]
        ys += [row[link.sender], row[link.receiver], None]
        texts += [
            f"slowest link {i + 1}→{i + 2}: {link.throughput:,.6g} {evaluation.link_unit}/s"
        ] * 2 + [""]
    figure.add_trace(
        go.Scatter(
            x=xs, y=ys, mode="lines+markers", name="bottleneck", hovertext=texts, hoverinfo="text",
            line={"color": BOTTLENECK, "width": 4, "dash": "dot"}, marker={"size": 10, "color": BOTTLENECK},
        )
    )  # fmt: skip


def _placement_title(problem: Problem, evaluation: Evaluation | None) -> str:
    name = plain(problem.name)
    if evaluation is None:
        return f"{name}: {counted(len(problem.cluster), 'GPU')}, {counted(problem.model.layers, 'layer')} to place"
    stages = counted(len(evaluation.stages), "stage")
    # A link counted in transfers/s is compared with tokens/s: the write-up's mistake, named where
    # it shows.
    links_only = all(name.startswith("link") for name in evaluation.bottlenecks)
    unit = f"{evaluation.link_unit}/s" if links_only else "tokens/s"
    flight = "" if evaluation.in_flight is None else f" with {evaluation.in_flight} in flight"
    return (
        f"{name}: {evaluation.attainable:,.6g} {unit} in {stages}{flight}"
        f"<br><sup>{what_limits(evaluation)}; hover for rates, shares and memory</sup>"
    )


def _note_unused(
    figure: "Figure", problem: Problem, placement: Placement | None, shown: list[int]
) -> None:
    hidden = len(problem.cluster) - len(shown)
    if hidden:
        text = (
            f"{hidden} GPUs without a stage are not shown"
            if hidden > 1
            else "1 GPU without a stage is not shown"
        )
        figure.add_annotation(
            text=text, xref="paper", yref="paper",
            x=1, y=0, yshift=-44, xanchor="right", showarrow=False, font={"size": 11},
        )  # fmt: skip
