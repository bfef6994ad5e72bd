"""The steady rate of a placement's pipeline against microbatches in flight."""

import numpy as np

from pipelab.display import Figure, counted, duration, rate
from pipelab.engine.timeline.placement_timelines import PlacedTimeline
from pipelab.figures.theme import BOTTLENECK, TYPE_COLOURS, figure_of, finish, line, plain, points


def plot_in_flight(placed: PlacedTimeline) -> Figure:
    """Draw the steady rate against microbatches in flight: simulated points, the rate, the bound.

    Parameters
    ----------
    placed : PlacedTimeline
        Made by `timeline_of`.

    Returns
    -------
    plotly.graph_objects.Figure
        Tokens/s against numbers in flight; hollow points do not fit in memory.
    """
    frame, needed = placed.sweep(), placed.in_flight_needed
    full, counts = placed.predicted_rate, frame["in_flight"]
    # The bound as a curve: it bends where the latency is filled, between two whole numbers.
    bend = full * placed.latency_s / placed.problem.workload.tokens
    last = max(float(counts.max()), bend) + 0.5
    bound = "upper bound: the rate, or number in flight / latency"
    data: list[dict] = [
        line(bound, [0, bend, last], [0, full, full], TYPE_COLOURS[1], 7),
        line("rate of the slowest lane", [0, last], [full] * 2, BOTTLENECK, look={"dash": "dash"}),
    ]
    for fits, name in ((True, "simulated"), (False, "simulated, but memory does not hold so many")):
        here = frame[frame["fits"] == fits]
        n, reached = here["in_flight"].tolist(), here["steady_rate_tokens_per_s"].tolist()
        colours = (TYPE_COLOURS[0], "white") if fits else ("white", TYPE_COLOURS[0])
        outline = {"color": colours[1], "width": 1 if fits else 2}
        marker = {"color": colours[0], "size": 10, "line": outline}
        hover = f"%{{x}} in flight: %{{y:,.7g}} of {full:,.7g} tokens/s<extra></extra>"
        shown = {"marker": marker, "hovertemplate": hover}
        data.append(points(name, n, reached, "markers", showlegend=bool(n), **shown))
    arrow = {
        "x": needed,
        "y": full,
        "text": f"{needed} needed",
        "ax": 0,
        "ay": 46,
        "font": {"size": 14},
        "showarrow": True,
        "arrowhead": 2,
        "standoff": 8,
    }
    title, note = _finding(placed, counts[~frame["fits"]].min() <= needed)
    across = {"title": "microbatches in flight", "range": [0, last], "tick0": 0}
    across["dtick"] = max(1, int(np.ceil(last / 16)))
    down = {"title": "steady rate (tokens/s)", "range": [0, 1.1 * full]}
    return figure_of(finish(data, title, note, x=across, y=down, height=420, annotations=[arrow]))


def _finding(placed: PlacedTimeline, too_few: bool) -> tuple[str, str]:
    """Return title and note; `too_few` if memory does not hold as many as are needed."""
    name, needed = plain(placed.problem.name), placed.in_flight_needed
    full = rate(placed.predicted_rate)
    if too_few:
        title = f"{name}: {counted(placed.in_flight, 'microbatch')} in flight: {rate(placed.steady_rate)}"
        return title, f"memory does not hold the {needed} that would reach {full}"
    verb, more = ("reach", "more of them") if needed > 1 else ("reaches", "a second one")
    title = f"{name}: {counted(needed, 'microbatch')} in flight {verb} {full}"
    latency = duration(placed.latency_s)
    return title, f"one takes {latency} from end to end; {more} would only wait"
