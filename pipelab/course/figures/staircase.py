"""A bound as a staircase: how many layers all GPUs hold together at a rate, against the rate."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipelab.cluster import GPU
from pipelab.figures.theme import BOTTLENECK, WRONG, colour_of_types, plain, template
from pipelab.problem import Problem

if TYPE_CHECKING:
    import plotly.graph_objects as go

_STEPS = 400


def plot_staircase(
    problem: Problem,
    most: Callable[[GPU, float], int],
    rate: float,
    span: tuple[float, float] = (3000, 9000),
) -> "go.Figure":
    """The layers that fit at every rate, stacked by GPU type, with one rate marked.

    Parameters
    ----------
    problem : Problem
        Its model's layers are the line to reach.
    most : callable
        The most layers that a GPU holds without falling below a rate in tokens/s.
    rate : float
        The rate that is marked.
    span : tuple of float
        The rates that are shown.

    Returns
    -------
    plotly.graph_objects.Figure
        In tokens/s and layers.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> figure = plot_staircase(three_sites(), lambda gpu, rate: int(40000 / rate), 6000)
    >>> figure.layout.title.text.split("<br>")[0]
    'At 6,000.0 tokens/s 66 layers fit: 14 too few'
    """
    import plotly.graph_objects as go

    counts = Counter(gpu.type for gpu in problem.cluster.gpus)
    one_of = {gpu.type: gpu for gpu in problem.cluster.gpus}
    needed = problem.model.layers
    low, high = min(span[0], rate), max(span[1], rate)
    rates = sorted({rate, *(low + (high - low) * i / _STEPS for i in range(_STEPS + 1))})
    held = {kind: [n * most(one_of[kind], t) for t in rates] for kind, n in counts.items()}
    at_rate = sum(n * most(one_of[kind], rate) for kind, n in counts.items())
    figure = go.Figure()
    for kind, colour in colour_of_types(counts).items():
        figure.add_scatter(
            x=rates, y=held[kind], name=plain(kind), stackgroup="layers", mode="lines",
            line={"color": colour, "width": 0.5, "shape": "vh"}, fillcolor=colour, opacity=0.9,
            hovertemplate=f"{plain(kind)}: %{{y}} layers at %{{x:,.0f}} tokens/s<extra></extra>",
        )  # fmt: skip
    highest = max(map(sum, zip(*held.values(), strict=True)))
    enough = at_rate >= needed
    mark = BOTTLENECK if enough else WRONG
    figure.add_scatter(
        x=[rate, rate], y=[0, at_rate], mode="lines+markers", showlegend=False, hoverinfo="skip",
        line={"color": mark, "width": 2.5}, marker={"color": mark, "size": [0, 11]},
    )  # fmt: skip
    figure.add_hline(
        y=needed, line={"color": BOTTLENECK, "width": 1.5, "dash": "dash"},
        annotation={"text": f"the model: {needed} layers", "font": {"size": 12}}, annotation_position="top right",
    )  # fmt: skip
    verdict = "enough" if enough else f"{needed - at_rate} too few"
    note = "height: layers that all GPUs hold together at that rate; dashed: what the model needs"
    figure.update_layout(
        template=template(), height=400, margin={"t": 92, "b": 52},
        title=f"At {rate:,.1f} tokens/s {at_rate} layers fit: {verdict}<br><sup>{note}</sup>",
        xaxis={"title": {"text": "target rate t, tokens/s"}, "range": [low, high], "tickformat": ",",
               "showgrid": False},
        yaxis={"title": {"text": "layers that fit"}, "range": [0, 1.1 * highest]},
    )  # fmt: skip
    return figure
