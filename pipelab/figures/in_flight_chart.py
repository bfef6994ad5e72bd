"""The steady rate of a placement's pipeline against microbatches in flight."""

from typing import TYPE_CHECKING

import numpy as np

from pipelab.figures.theme import BOTTLENECK, GRID, TYPE_COLOURS, plain, template

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.engine.timeline.placed import PlacedTimeline


def plot_in_flight(placed: "PlacedTimeline") -> "Figure":
    """The steady rate against microbatches in flight: simulated points, the rate, and the bound; hollow: no memory.

    Parameters
    ----------
    placed : PlacedTimeline
        Made by `timeline_of`.

    Returns
    -------
    plotly.graph_objects.Figure
        Tokens/s against numbers in flight.
    """
    import plotly.graph_objects as go

    frame, needed = placed.sweep(), placed.in_flight_needed
    counts = frame["in_flight"]
    beyond = counts[~frame["fits"]]
    # The bound as a curve: it bends where the latency is filled, between two whole numbers.
    bend = placed.predicted_rate * placed.latency_s / placed.problem.workload.tokens
    last = max(float(counts.max()), bend) + 0.5
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            name="upper bound: the rate, or number in flight / latency", mode="lines", x=[0, bend, last],
            y=[0, placed.predicted_rate, placed.predicted_rate], hoverinfo="skip",
            line={"color": TYPE_COLOURS[1], "width": 7},
        )
    )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            name="rate of the slowest lane", mode="lines", x=[0, last], y=[placed.predicted_rate] * 2, hoverinfo="skip",
            line={"color": BOTTLENECK, "dash": "dash", "width": 2},
        )
    )  # fmt: skip
    for fits, name in ((True, "simulated"), (False, "simulated, but memory does not hold so many")):
        here = frame[frame["fits"] == fits]
        pairs = list(zip(here["in_flight"], here["steady_rate_tokens_per_s"], strict=True))
        colour = TYPE_COLOURS[0] if fits else "white"
        outline = {"color": "white", "width": 1} if fits else {"color": TYPE_COLOURS[0], "width": 2}
        figure.add_trace(
            go.Scatter(
                name=name, mode="markers", x=[n for n, _ in pairs], y=[rate for _, rate in pairs],
                marker={"color": colour, "size": 10, "line": outline}, showlegend=bool(pairs),
                hovertext=[f"{n} in flight: {rate:,.7g} tokens/s, {rate / placed.predicted_rate:.1%} of the rate"
                           for n, rate in pairs], hoverinfo="text",
            )
        )  # fmt: skip
    figure.add_annotation(
        x=needed, y=placed.predicted_rate, text=f"{needed} needed", ay=46, ax=0, font={"size": 14},
        showarrow=True, arrowhead=2, standoff=8,
    )  # fmt: skip
    several = needed > 1
    verb, rate = "reach" if several else "reaches", f"{placed.predicted_rate:,.6g} tokens/s"
    title = f"{_microbatches(needed)} in flight {verb} {rate}"
    note = f"one takes {_seconds(placed.latency_s)} from end to end; "
    note += "more of them would only wait" if several else "a second one would only wait"
    if len(beyond) and beyond.min() <= needed:
        title = f"{_microbatches(placed.in_flight)} in flight: {placed.steady_rate:,.6g} tokens/s"
        note = f"memory does not hold the {needed} that would reach {rate}"
    figure.update_layout(
        template=template(), height=420, title=f"{plain(placed.problem.name)}: {title}<br><sup>{note}</sup>",
        xaxis={
            "title": {"text": "microbatches in flight"}, "range": [0, last], "gridcolor": GRID, "zeroline": False,
            "dtick": max(1, int(np.ceil(last / 16))), "tick0": 0,
        },
        yaxis={
            "title": {"text": "steady rate (tokens/s)"}, "range": [0, 1.1 * placed.predicted_rate], "gridcolor": GRID,
            "zeroline": False, "ticklabelstandoff": 6,
        },
    )  # fmt: skip
    return figure


def _microbatches(number: int) -> str:
    return f"{number} microbatch{'es' * (number > 1)}"


def _seconds(value: float) -> str:
    if value >= 600:
        return f"{value / 60:.3g} min"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"
