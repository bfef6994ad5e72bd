"""A cut as a picture: the layers as blocks, and how long every stage and every link takes."""

from typing import TYPE_CHECKING, NamedTuple

from pipelab.figures.theme import (
    BOTTLENECK,
    GRID,
    NEUTRAL_LIGHT,
    WRONG,
    colour_of_types,
    ink_on,
    plain,
    template,
)
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SAME = 1 + 1e-9  # times this close to one another are one bottleneck


class _Part(NamedTuple):
    """A stage or a link: one bar."""

    name: str
    label: str
    kind: str  # GPU type, or "link"
    ms: float
    layers: int = 0
    lacks: str = ""  # what does not fit


def plot_cut(problem: Problem, placement: Placement) -> "go.Figure":
    """Layers as blocks, and below them a bar for the time of every stage and of every link.

    Also of a placement that memory does not hold, which `evaluate` refuses: the figure says where.

    Parameters
    ----------
    problem : Problem
        With links counted in tokens/s, so that they have a time.
    placement : Placement
        All layers, in order.

    Returns
    -------
    plotly.graph_objects.Figure
        In milliseconds per batch; the longest bars are framed.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> cut = Placement.of([(10, (3,)), (20, (0,)), (20, (1,)), (20, (2,)), (10, (4,))])
    >>> plot_cut(three_sites(), cut).layout.title.text.split("<br>")[0]
    '2,503.4 tokens/s: GPU 4 takes 818 ms'
    """
    from plotly.subplots import make_subplots

    parts = _parts(problem, placement)
    longest = max(part.ms for part in parts)
    slowest = [part for part in parts if part.ms * _SAME >= longest]
    figure = make_subplots(rows=2, cols=1, row_heights=[0.14, 0.86], vertical_spacing=0.22)
    colours = colour_of_types(gpu.type for gpu in problem.cluster.gpus)
    _draw_blocks(figure, parts, colours)
    _draw_times(figure, parts, colours, slowest)
    figure.update_layout(
        template=template(), title=_title(problem, placement, parts, slowest),
        height=470, barmode="overlay",
        xaxis={"title": {"text": "decoder layer"}, "range": [0, problem.model.layers], "showgrid": False,
               "title_standoff": 4, "dtick": 10},
        yaxis={"visible": False, "range": [-0.5, 0.5]},
        xaxis2={"tickvals": list(range(len(parts))), "ticktext": [p.label for p in parts], "showgrid": False,
                "tickangle": 0, "range": [-0.6, len(parts) - 0.4], "tickfont": {"size": 11}},
        yaxis2={"title": {"text": "ms per batch"}, "tickformat": ",", "gridcolor": GRID, "range": [0, 1.14 * longest]},
        legend={"y": 1.0}, margin={"t": 92, "b": 40},
    )  # fmt: skip
    return figure


def _parts(problem: Problem, placement: Placement) -> list[_Part]:
    """Stages and the links between them, in pipeline order."""
    gpus, parts = problem.cluster.gpus, []
    before: tuple[int, ...] = ()
    for number, stage in enumerate(placement.stages, start=1):
        members = [gpus[g] for g in stage.gpus]
        cost = problem.costs.stage(
            problem.model, problem.workload, members, stage.layers, problem.batch_split
        )
        if before:
            bandwidth = min(
                problem.cluster.bandwidth_between(a, b) for a in before for b in stage.gpus
            )
            ms = 1000 * problem.workload.tokens / problem.link_throughput(bandwidth)
            name = f"the link from {_gpus(before)} to {_gpus(stage.gpus)}"
            parts.append(_Part(name, "→", "link", ms))
        short = [
            f"stage {number} needs {need:.3g} GB, and {plain(gpu.type)} has {gpu.memory_gb:g}"
            for gpu, need in zip(members, cost.memory_gb, strict=True)
            if need > gpu.memory_gb * _SAME
        ]
        parts.append(
            _Part(
                f"stage {number}", _gpus(stage.gpus), members[0].type,
                1000 * problem.workload.tokens / cost.throughput, len(stage.layers), (short or [""])[0],
            )
        )  # fmt: skip
        before = stage.gpus
    return parts


def _gpus(ids: tuple[int, ...]) -> str:
    return f"GPU {', '.join(map(str, ids))}"


def _draw_blocks(figure: "go.Figure", parts: list[_Part], colours: dict[str, str]) -> None:
    start = 0
    for part in (p for p in parts if p.layers):
        colour = WRONG if part.lacks else colours[part.kind]
        figure.add_bar(
            orientation="h", y=[0], x=[part.layers], base=[start], width=[1], showlegend=False,
            marker={"color": colour, "line": {"color": "white", "width": 2}},
            text=[f"{part.layers}"], textposition="inside", insidetextanchor="middle", textangle=0,
            textfont={"color": ink_on(colour), "size": 12}, constraintext="none",
            hovertext=[part.lacks or f"{part.name}: {part.layers} layers"], hoverinfo="text", row=1, col=1,
        )  # fmt: skip
        start += part.layers


def _draw_times(
    figure: "go.Figure", parts: list[_Part], colours: dict[str, str], slowest: list[_Part]
) -> None:
    for kind, colour in {**colours, "link": NEUTRAL_LIGHT}.items():
        shown = [(place, part) for place, part in enumerate(parts) if part.kind == kind]
        framed = [part in slowest for _, part in shown]
        # The legend's own: a bar that is framed would give its frame to the legend.
        figure.add_bar(name=plain(kind), x=[None], y=[None], marker={"color": colour}, row=2, col=1)
        figure.add_bar(
            width=0.84, showlegend=False, x=[place for place, _ in shown], y=[part.ms for _, part in shown],
            marker={"color": [WRONG if part.lacks else colour for _, part in shown],
                    "line": {"color": BOTTLENECK, "width": [3 if frame else 0 for frame in framed]}},
            text=[f"<b>{part.ms:,.0f}</b>" if frame else f"{part.ms:,.0f}"
                  for (_, part), frame in zip(shown, framed, strict=True)],
            textposition="outside", textangle=0, cliponaxis=False, textfont={"size": 12}, constraintext="none",
            hovertext=[f"{part.name}: {part.ms:,.1f} ms" for _, part in shown], hoverinfo="text",
            row=2, col=1,
        )  # fmt: skip


def _title(problem: Problem, placement: Placement, parts: list[_Part], slowest: list[_Part]) -> str:
    idle = len(problem.cluster) - len(placement.gpus)
    short = [part for part in parts if part.lacks]
    if short:
        more = f"; memory is too small {len(short) - 1} more times" if short[1:] else ""
        return f"Does not fit: {short[0].lacks}{more}<br><sup>red: memory is too small</sup>"
    rate = 1000 * problem.workload.tokens / slowest[0].ms
    stages = ", ".join(part.label.removeprefix("GPU ") for part in slowest if part.kind != "link")
    several = "," in stages
    named = [f"GPU{'s' if several else ''} {stages}"] if stages else []
    named += [part.name for part in slowest if part.kind == "link"]
    verb = "take" if several or named[1:] else "takes"
    note = "framed: the bottleneck" + (
        f"; {idle} GPUs idle" if idle > 1 else "; 1 GPU idle" if idle else ""
    )
    return f"{rate:,.1f} tokens/s: {' and '.join(named)} {verb} {slowest[0].ms:,.0f} ms<br><sup>{note}</sup>"
