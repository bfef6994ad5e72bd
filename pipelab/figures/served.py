"""What requests wait for: times by percentile, the first requests one by one, and the way of one through the lanes."""

import numpy as np

from pipelab.display import Figure, counted, duration
from pipelab.engine.serving.served import Served
from pipelab.errors import InvalidValue
from pipelab.fields import Natural, checked_value
from pipelab.figures.gantts import lanes_axis
from pipelab.figures.theme import (
    BOTTLENECK,
    NEUTRAL_LIGHT,
    TYPE_COLOURS,
    bar,
    figure_of,
    finish,
    line,
    plain,
)

_WAITS, _READS, _WRITES = "until admitted", "until the first token", "until the last token"
_COLOURS = {_WAITS: NEUTRAL_LIGHT, _READS: TYPE_COLOURS[0], _WRITES: TYPE_COLOURS[1]}
_TIMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "waiting_ms": _WAITS}
_NAMED_PERCENTILES = np.array([0, 50, 90, 99, 99.9])
_MOST_REQUESTS = 40
_MOST_BARS = 1000  # of one request's way


def plot_percentiles(served: Served) -> Figure:
    """Draw TTFT, TPOT and the time until admission against the percentile, and the limits of the plan.

    Parameters
    ----------
    served : Served
        Made by `pl.serve`.

    Returns
    -------
    plotly.graph_objects.Figure
        Times in ms on a logarithmic axis. Across, each further nine takes the same room: 90, 99, 99.9.
    """
    _answered(served)
    half, most = (duration(served.at("ttft_ms", percentile) / 1000) for percentile in (50, 99))
    title = f"Half of the first tokens come within {half}, 99 of 100 within {most}"
    one_in = np.geomspace(1, min(max(len(served.requests["came_s"]), 10), 1000), 150)
    percentiles, data = 100 * (1 - 1 / one_in), []
    for (time, name), colour in zip(_TIMES.items(), TYPE_COLOURS, strict=False):
        ms = np.array([served.at(time, percentile) for percentile in percentiles])
        if (ms > 0).any():
            hover = f"{name}: %{{text}} % within %{{y:,.4g}} ms<extra></extra>"
            text = [f"{percentile:.4g}" for percentile in percentiles]
            data.append(line(name, one_in, ms, colour, text=text, hovertemplate=hover))
    limited = (("ttft_ms", "dash"), ("tpot_ms", "dot"))
    for (time, dash), limit in zip(limited, served.limits or (), strict=False):
        if limit < np.inf:
            name, ends = f"limit of {_TIMES[time]}", one_in[[0, -1]]
            data.append(line(name, ends, [limit] * 2, BOTTLENECK, look={"dash": dash}))
            late = (served.requests[time] > limit).mean()
            title += f", {late:.2%} break the {name}" if late else f", all keep the {name}"
    across = {
        "title": "percentile",
        "type": "log",
        "tickvals": 1 / (1 - _NAMED_PERCENTILES / 100),
        "ticktext": [f"{percentile:g}" for percentile in _NAMED_PERCENTILES],
    }
    down = {"title": "ms", "type": "log", "exponentformat": "none", "dtick": "D2"}
    note = plain(str(served.sent)) + "; more come than end" * served.falls_behind
    return figure_of(finish(data, title, note, x=across, y=down, height=420))


def _answered(served: Served) -> np.ndarray:
    """Return the numbers of the requests that were not rejected, of which there must be one."""
    answered = np.flatnonzero(~np.isnan(served.requests["ttft_ms"]))
    if not len(answered):
        expected = "expected at least one request that memory holds"
        raise InvalidValue("plot", [("served", str(served.sent), expected)])
    return answered


def plot_requests(served: Served) -> Figure:
    """Draw the first forty requests that memory holds: until they are admitted, have a first token, have the last.

    Parameters
    ----------
    served : Served
        Made by `pl.serve`.

    Returns
    -------
    plotly.graph_objects.Figure
        In seconds from the first arrival.
    """
    numbers = _answered(served)[:_MOST_REQUESTS]
    first = {name: column[numbers] for name, column in served.requests.items()}
    came = first["came_s"] - first["came_s"][0]
    admitted, begun = (came + first[time] / 1000 for time in ("waiting_ms", "ttft_ms"))
    times = [came, admitted, begun, first["ended_s"] - first["came_s"][0]]
    sizes = [f"{p:,} + {a:,} tokens" for p, a in zip(first["prompt"], first["answer"], strict=True)]
    hover = "%{hovertext}<br>%{base:.4g} to %{value:.4g} s<extra></extra>"
    look = {"width": 0.8, "hovertext": sizes, "hovertemplate": hover}
    data = [
        bar(name, np.arange(len(came)), begin, end, marker={"color": colour}, **look)
        for (name, colour), begin, end in zip(_COLOURS.items(), times, times[1:], strict=False)
    ]
    title = f"{counted(len(came), 'request')}: first tokens take {duration(np.mean(begun - came))} in the mean, "
    title += f"the last answer ends after {duration(max(times[-1]))}"
    lanes = lanes_axis([f"request {number}" for number in numbers])
    height, note = 160 + 20 * max(3, len(came)), plain(served.sent)
    parts = finish(data, title, note, x="time (s)", y=lanes, height=height, barmode="overlay")
    return figure_of(parts)


def plot_way(served: Served, *, request: int | None = None) -> Figure:
    """Draw where one request is when: a row for each stage and link, a bar for each time that it is there.

    Parameters
    ----------
    served : Served
        Made by `pl.serve`.
    request : int, optional
        Its number in `served.requests`, from 0; by default the one whose TTFT is at the 99th percentile.

    Returns
    -------
    plotly.graph_objects.Figure
        Until twice its TTFT, and a thousand bars at most.

    Raises
    ------
    InvalidValue
        There is no such request, or it was rejected.
    """
    ttft, answered = served.requests["ttft_ms"] / 1000, _answered(served)
    if request is None:
        request = int(np.nanargmin(abs(ttft - served.at("ttft_ms", 99) / 1000)))
    if checked_value("plot", "request", request, Natural) not in answered:
        expected = f"expected one of 0 to {len(ttft) - 1} that was not rejected"
        raise InvalidValue("plot", [("request", request, expected)])
    way = sorted(served.follow(request), key=lambda step: step[1])
    begins, ends = np.array([step[1:3] for step in way]).T - served.requests["came_s"][request]
    lanes, rows_of = np.unique([step[0] for step in way], return_inverse=True)
    reads = begins < ttft[request] * (1 - 1e-9)
    drawn = (np.arange(len(way)) < _MOST_BARS) & (begins < 2 * ttft[request])
    works = [f"with {w.reads:g} tokens of prompts and {w.writes:g} of answers" for *_, w in way]
    hover = "%{base:.4g} to %{value:.4g} s<br>%{hovertext}<extra></extra>"
    last = ends[drawn].max()
    wide = ends - begins > 0.005 * last  # a white line would hide others
    data = []
    for name, here in ((_READS, drawn & reads), (_WRITES, drawn & ~reads)):
        colour, text = _COLOURS[name], np.array(works)[here]
        outline = {"color": np.where(wide[here], "white", colour), "width": 1}
        look = {"marker": {"color": colour, "line": outline}, "width": 0.8}
        look |= {"hovertext": text, "hovertemplate": hover}
        data.append(bar(name, rows_of[here], begins[here], ends[here], **look))
    busy_until = np.maximum.accumulate(np.append(0, ends[reads]))
    waits = np.maximum(0, np.append(begins[reads], ttft[request]) - busy_until).sum()
    first, waits = duration(ttft[request]), duration(waits)
    title = f"Request {request} has its first token after {first}, of which it waits {waits}"
    note = "each bar is a batch that it is in"
    note += "; it waits for its cache, too" * any(line.hands_on for line in served.lines.lines)
    if drawn.sum() < len(way):
        note += f"; the first {drawn.sum():,} of {len(way):,} are shown"
    known = served.lines.lanes
    several = len({lane.name for lane in known}) < len(known)  # pipelines that share no lane
    names = [f"pipeline {known[lane].line + 1}, " * several + known[lane].name for lane in lanes]
    axes = {
        "x": {"title": "seconds from its arrival", "range": [0, last]},
        "y": lanes_axis(names),
    }
    height = 160 + min(720, 30 * max(3, len(names)))
    return figure_of(finish(data, title, note, **axes, height=height, barmode="overlay"))
