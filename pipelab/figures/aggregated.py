"""The aggregated form in pictures: classes, the search, the proof, the cost against size."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.display import PROVEN, STOPPED, outcome_of
from pipelab.errors import InvalidValue
from pipelab.figures.theme import (
    BOTTLENECK,
    GRID,
    TYPE_COLOURS,
    WRONG,
    colour_of_types,
    ink_on,
    plain,
    template,
)

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

    from pipelab.cluster import Cluster
    from pipelab.engine.methods.certificates import Certificate
    from pipelab.solving import Result

YES, NO, OPEN = "#009E73", WRONG, "#999999"


def plot_classes(cluster: "Cluster") -> "Figure":
    """Bandwidth from every GPU to every other, GPUs of one class side by side and framed.

    Parameters
    ----------
    cluster : Cluster
        Small enough for a cell per pair of GPUs.

    Returns
    -------
    plotly.graph_objects.Figure
        A heat map in Gb/s, with colours by powers of ten; rows send, columns receive.
    """
    import plotly.graph_objects as go

    from pipelab.engine.classes import gpu_classes

    classes = gpu_classes(cluster)
    order = np.concatenate(classes.members)
    matrix = 8 * cluster.bandwidth_matrix()[np.ix_(order, order)]  # Gb/s, as networks are named
    np.fill_diagonal(matrix, np.nan)  # no GPU sends to itself
    speeds = np.unique(matrix[~np.isnan(matrix)])
    if len(speeds) > 6:
        speeds = 10.0 ** np.arange(math.floor(np.log10(speeds[0])), np.log10(speeds[-1]) + 1)
    types = [plain(cluster.gpus[g].type) for g in order]
    figure = go.Figure(
        go.Heatmap(
            z=np.log10(matrix), colorscale="Cividis",
            colorbar={"title": {"text": "Gb/s"}, "tickvals": np.log10(speeds), "ticktext": [f"{v:g}" for v in speeds]},
            customdata=[[f"GPU {a} ({s}) to GPU {b} ({r}): {v:g}" for b, r, v in zip(order, types, row, strict=True)]
                        for a, s, row in zip(order, types, matrix, strict=True)],
            hovertemplate="%{customdata} Gb/s<extra></extra>", hoverongaps=False,
        )
    )  # fmt: skip
    ends = np.cumsum(classes.count) - 0.5
    starts = ends - classes.count
    for a, b in zip(starts, ends, strict=True):
        figure.add_shape(type="rect", x0=a, x1=b, y0=a, y1=b, line={"color": "white", "width": 3})
        figure.add_shape(
            type="rect",
            x0=a,
            x1=b,
            y0=a,
            y1=b,
            line={"color": BOTTLENECK, "width": 1.5, "dash": "dot"},
        )
    n = len(order)
    axis = {
        "tickvals": ((starts + ends) / 2).tolist(), "showgrid": False, "zeroline": False,
        "ticktext": [f"{c} × {plain(name)}" for c, name in zip(classes.count, classes.names, strict=True)],
    }  # fmt: skip
    noun = "class" if len(classes) == 1 else "classes"
    figure.update_layout(
        template=template(), height=520, margin={"l": 150, "b": 110},
        title=f"{n} GPUs are {len(classes)} {noun} of interchangeable ones"
        "<br><sup>rows send, columns receive; frames hold GPUs that differ in nothing</sup>",
        xaxis={**axis, "tickangle": -35, "constrain": "domain"},
        yaxis={**axis, "autorange": "reversed", "scaleanchor": "x", "constrain": "domain"},
    )  # fmt: skip
    return figure


def plot_search(result: "Result") -> "Figure":
    """Every subproblem of a search: its target rate, and whether a placement reaches it.

    Parameters
    ----------
    result : Result
        Of method "aggregated".

    Returns
    -------
    plotly.graph_objects.Figure
        A mark per subproblem, in tokens/s; hover gives its kind and its size.

    Raises
    ------
    InvalidValue
        The result is of another method, which solves no subproblems.
    """
    import plotly.graph_objects as go

    if "subproblems" not in result.details:
        raise InvalidValue(
            "plot_search", [("result", result.method, "expected a result of method 'aggregated'")]
        )

    solved = [s for s in result.details["subproblems"] if not s.kind.startswith("least")]
    figure = go.Figure()
    looks = {"yes": (YES, "circle"), "no": (NO, "x"), "not answered": (OPEN, "diamond-open")}
    for answer, (colour, symbol) in looks.items():
        shown = [(i, s) for i, s in enumerate(solved, 1) if s.answer == answer]
        if shown:
            figure.add_trace(
                go.Scatter(
                    x=[i for i, _ in shown], y=[s.rate for _, s in shown], mode="markers", name=answer,
                    marker={"color": colour, "symbol": symbol, "size": 13, "line": {"width": 2}},
                    customdata=[(s.kind, s.variables, s.rows, 1000 * s.seconds) for _, s in shown],
                    hovertemplate="%{y:,.6g} tokens/s, %{customdata[0]}: " + answer
                    + "<br>%{customdata[1]} variables, %{customdata[2]} rows, %{customdata[3]:.0f} ms<extra></extra>",
                )
            )  # fmt: skip
    rates = result.details["instance"].thresholds
    if result.throughput is not None:
        figure.add_hline(
            y=result.throughput, line={"color": BOTTLENECK, "dash": "dash", "width": 1.5},
            annotation_text=f"{outcome_of(result)}: {result.throughput:,.6g}", annotation_position="bottom left",
        )  # fmt: skip
    spent = sum(s.seconds for s in solved)
    figure.update_layout(
        template=template(), height=380,
        title=f"{plain(result.problem.name)}: {len(solved)} subproblems settle {len(rates)} possible rates"
        f"<br><sup>the largest program has {max((s.variables for s in solved), default=0)} variables; "
        f"{spent:.2g} s for all of them</sup>",
        xaxis={"title": {"text": "subproblem"}, "dtick": max(1, len(solved) // 12)},
        yaxis={"title": {"text": "target rate (tokens/s)"}},
    )  # fmt: skip
    return figure


def plot_proof(proof: "Certificate") -> "Figure":
    """The dual prices of all GPUs at the next higher rate, in layers, beside the layers to be held.

    Parameters
    ----------
    proof : Certificate
        Made by `certificate`.

    Returns
    -------
    plotly.graph_objects.Figure
        A bar per type of GPU, end to end, in layers.

    Raises
    ------
    InvalidValue
        Its `rate` is None: no stage is faster, or none fits, and there is nothing to draw.
    """
    import plotly.graph_objects as go

    if proof.rate is None:
        raise InvalidValue(
            "plot_proof",
            [("proof", str(proof), "expected one with a rate: this one needs no picture")],
        )

    kinds, layers = proof.problem.cluster.kinds, proof.problem.model.layers
    colours = colour_of_types([kind.type for kind in kinds])
    figure = go.Figure()
    for kind, count, price in zip(
        kinds, proof.problem.cluster.kind_count.tolist(), proof.prices, strict=True
    ):
        if price:
            figure.add_trace(
                go.Bar(
                    y=["all GPUs"], x=[float(count * price)], orientation="h", name=kind.type,
                    marker={"color": colours[kind.type], "line": {"color": "white", "width": 1.5}},
                    text=f"{count} {kind.type} × {price} = {float(count * price):g}", textposition="inside",
                    insidetextanchor="middle", insidetextfont={"color": ink_on(colours[kind.type])},
                    hovertemplate=f"{count} × {kind.type}, good for {price} layers each<extra></extra>",
                )
            )  # fmt: skip
    needed, there = float(proof.total_value), float(proof.total_price)
    plain = all(value == 1 for value in proof.values)
    figure.add_vline(x=needed, line={"color": BOTTLENECK, "width": 3})
    label = f"{layers} layers" if plain else f"{layers} layers, which count as {needed:g}"
    figure.add_annotation(
        x=needed, y=1, yref="paper", text=label, showarrow=False, yanchor="bottom"
    )
    short = needed - there
    found = (
        f"{short:g} short"
        if short > 0
        else "enough in parts, so the proof needs whole stages or links"
    )
    why = "no stage that reaches this rate holds more layers than its GPUs are good for"
    if not plain:
        why += "; a layer that comes with more work counts for more"
    figure.update_layout(
        template=template(), barmode="stack", height=260, showlegend=False,
        title=f"At {proof.rate:,.6g} tokens/s all GPUs are good for {there:g} of {needed:g} layers: {found}"
        f"<br><sup>{why}</sup>",
        xaxis={"title": {"text": "layers"}, "range": [0, 1.12 * max(needed, there)]},
        yaxis={"showticklabels": False},
    )  # fmt: skip
    return figure


def plot_run_times(frame: "DataFrame", series: Any) -> "Figure":
    """Seconds against size for one or several series of a saved run: every problem a dot, medians joined.

    Parameters
    ----------
    frame : pandas.DataFrame
        Columns series, value, seed, seconds, status, variables; see `saved_run`.
    series : list of str
        Which of its series, a panel each.

    Returns
    -------
    plotly.graph_objects.Figure
        Seconds against size, both on logarithmic axes.
    """
    from plotly.subplots import make_subplots

    columns = 2 if len(series) in (2, 4) else min(3, len(series))
    rows = math.ceil(len(series) / columns)
    figure = make_subplots(
        rows, columns, subplot_titles=list(series), horizontal_spacing=0.08, vertical_spacing=0.24
    )
    for i, name in enumerate(series):
        part = frame[frame["series"] == name].astype({"value": float})
        where = {"row": i // columns + 1, "col": i % columns + 1}
        median = part.groupby("value")["seconds"].median()
        _add_series(figure, part, median, where)
        figure.update_xaxes(
            type="log",
            tickvals=median.index.tolist(),
            ticktext=[f"{v:,.0f}" for v in median.index],
            **where,
        )
    decades = [10.0**e for e in range(-2, 3)]
    figure.update_yaxes(
        type="log",
        tickvals=decades,
        ticktext=[f"{v:g}" for v in decades],
        gridcolor=GRID,
        range=[-2.2, 2.2],
    )
    for row in range(1, rows + 1):
        figure.update_yaxes(title={"text": "seconds"}, row=row, col=1)
    figure.update_layout(
        template=template(), height=60 + 270 * rows, showlegend=False,
        title=f"{_how_slow(frame[frame['series'].isin(series)])}"
        "<br><sup>saved run on two cores; a dot per random problem, medians joined (logarithmic axes)</sup>",
        margin={"t": 110},
    )  # fmt: skip
    return figure


def _how_slow(shown: "DataFrame") -> str:
    """How many problems, how long the slowest took, and how many were stopped without a proof."""
    ended = _is_proven(shown)
    slowest = f"{len(shown)} problems, the slowest solved in {shown['seconds'][ended].max():.3g} s"
    open_ = len(shown) - int(ended.sum())
    limit = shown["seconds"][~ended].min()
    return (
        f"{slowest}, {open_} stopped early after {limit:.0f} s (open diamonds)"
        if open_
        else slowest
    )


def _is_proven(part: Any) -> Any:
    """Which problems of a saved run were answered in time, infeasible ones among them; the others met the limit."""
    return part["status"].isin(("optimal", "infeasible"))


def _add_series(figure: "Figure", part: Any, median: Any, where: Any) -> None:
    import plotly.graph_objects as go

    figure.add_trace(
        go.Scatter(
            x=median.index,
            y=median,
            mode="lines",
            line={"color": TYPE_COLOURS[0]},
            hoverinfo="skip",
        ),
        **where,
    )
    proven = _is_proven(part)
    for outcome, dots in ((PROVEN, part[proven]), (STOPPED, part[~proven])):
        figure.add_trace(
            go.Scatter(
                x=dots["value"], y=dots["seconds"], mode="markers",
                marker={"color": outcome.fill, "symbol": outcome.marker, "size": 8},
                customdata=dots["variables"],
                hovertemplate=f"%{{x:g}}: %{{y:.3g}} s, %{{customdata}} variables, {outcome.word}<extra></extra>",
            ), **where
        )  # fmt: skip
