"""What a formulation costs: its size, and the course of a solve."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelab.display import ended
from pipelab.errors import InvalidValue
from pipelab.figures.theme import TYPE_COLOURS, WRONG, plain, template
from pipelab.solving import Result

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def plot_growth(sizes: Mapping[str, Mapping[str, int]], limit: int | None = None) -> "Figure":
    """How the joint ILP grows: allocations, connections and variables of several problems.

    Parameters
    ----------
    sizes : mapping of label to dict of str to int
        The numbers of `joint_size`.
    limit : int, optional
        Draws a line at the number of variables that can still be built, such as `joint_capacity`
        gives.

    Returns
    -------
    plotly.graph_objects.Figure
        Numbers on a logarithmic axis.

    Raises
    ------
    InvalidValue
        There are no sizes.
    """
    import plotly.graph_objects as go

    if not sizes:
        raise InvalidValue(
            "plot_growth", [("sizes", sizes, "expected at least one, as joint_size gives it")]
        )
    sizes = {plain(label): size for label, size in sizes.items()}
    figure, labels = go.Figure(), list(sizes)
    shapes = {"allocations": "circle", "connections": "diamond", "variables": "square"}
    for (what, symbol), colour in zip(shapes.items(), TYPE_COLOURS, strict=False):
        figure.add_trace(
            go.Scatter(
                x=labels, y=[sizes[label][what] for label in labels], name=what, mode="markers",
                marker={"symbol": symbol, "size": 13, "color": colour},
                hovertemplate="%{x}<br>" + what + ": %{y:,}<extra></extra>",
            )
        )  # fmt: skip
    if limit:
        note = f"{float(f'{limit:.1e}'):,.0f} variables: about what this machine can build"
        line = {"color": WRONG, "dash": "dash"}
        figure.add_hline(y=limit, line=line)
        figure.add_annotation(  # a log axis wants the logarithm here
            x=0,
            xref="paper",
            xanchor="left",
            y=math.log10(limit),
            yanchor="bottom",
            text=note,
            showarrow=False,
        )
    first, last = sizes[labels[0]], sizes[labels[-1]]
    share = last["connections"] / last["allocations"]
    title = f"Connections, not allocations, fill the model: {share:,.0f} for each allocation of {labels[-1]}"
    note = f"{labels[0]}: {first['variables']:,} variables · {labels[-1]}: {last['variables']:,} variables"
    figure.update_layout(
        template=template(), title=f"{title}<br><sup>{note}</sup>", height=440,
        yaxis={"type": "log", "title": {"text": "number (log scale)"}, "exponentformat": "power", "dtick": 1},
        xaxis={"title": {"text": "problem"}},
    )  # fmt: skip
    return figure


def plot_progress(result: Result) -> "Figure":
    """What a solve knew and when: best placement so far and proven bound, the gap between shaded.

    Parameters
    ----------
    result : Result
        Of a method that keeps its progress: "joint", "aggregated", "single_gpu" or "type_count".

    Returns
    -------
    plotly.graph_objects.Figure
        Tokens/s against seconds of solving; no lines where the method keeps no progress.
    """
    import plotly.graph_objects as go

    moments = result.details.get("progress", ())
    end = result.details.get("solve_seconds", 0.0)
    figure = go.Figure()
    for name, field, colour, dash in (
        ("proven bound", "bound", "#0072B2", "dash"),
        ("best so far", "incumbent", "#E69F00", "solid"),
    ):
        seconds, values = _steps([(p.seconds, getattr(p, field)) for p in moments], end)
        figure.add_trace(
            go.Scatter(
                x=seconds, y=values, name=name, mode="lines+markers", line={"color": colour, "dash": dash, "width": 3},
                line_shape="hv", hovertemplate="%{x:.2f} s: %{y:,.6g} tokens/s<extra>" + name + "</extra>",
            )
        )  # fmt: skip
    known = [p for p in moments if p.bound is not None and p.incumbent is not None]
    for field, fill in (("bound", None), ("incumbent", "tonexty")):  # shade where both are known
        seconds, values = [p.seconds for p in known] + [end], [getattr(p, field) for p in known]
        figure.add_trace(
            go.Scatter(
                x=seconds, y=[*values, *values[-1:]], mode="lines", line={"width": 0}, line_shape="hv", fill=fill,
                fillcolor="rgba(86,180,233,0.25)", showlegend=False, hoverinfo="skip",
            )
        )  # fmt: skip
    last = f"{result.throughput:,.6g} tokens/s" if result.throughput is not None else "no placement"
    gap = f", gap {result.gap:.2%}" if result.gap is not None else ""
    title = f"{plain(result.problem.name)}: {last} after {result.seconds:.3g} s{gap}"
    nodes = f"{result.details.get('nodes', 0):,} nodes of {result.solver}"
    note = f"{ended(result)}; {nodes}; the shaded gap is what was not yet known"
    figure.update_layout(
        template=template(), height=380, title=f"{title}<br><sup>{note}</sup>",
        xaxis={"title": {"text": "seconds of solving"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "tokens/s"}},
    )  # fmt: skip
    return figure


def _steps(points: Any, end: float) -> tuple[list[float], list[float]]:
    """Only the moments at which a value changed, and the end."""
    kept = [(s, v) for s, v in points if v is not None]
    kept = [p for i, p in enumerate(kept) if i == 0 or p[1] != kept[i - 1][1]]
    kept += [(end, kept[-1][1])] if kept else []
    return [s for s, _ in kept], [v for _, v in kept]
