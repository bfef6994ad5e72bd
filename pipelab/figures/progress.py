"""A solve while it runs: incumbent and bound as step lines, the gap between them shaded. Always the same traces."""

from collections.abc import Sequence

from pipelab.engine.solvers.solver_run import Progress
from pipelab.figures.theme import GRID

_BOUND, _BEST = "#0072B2", "#E69F00"


def progress_parts(moments: Sequence[Progress], seconds: float, title: str, note: str = "") -> dict:
    """What was known when, up to now.

    Parameters
    ----------
    moments : sequence of Progress
    seconds : float
        Where the lines end: how long it has been solving.
    title, note : str

    Returns
    -------
    dict
        "data": four traces (two that bound the shade, the bound, the best placement); and "layout".

    Examples
    --------
    >>> parts = progress_parts([Progress(0.5, None, 90.0, 1), Progress(1.0, 60.0, 80.0, 5)], 2.0, "running")
    >>> [trace["y"] for trace in parts["data"]]
    [[80.0, 80.0], [60.0, 60.0], [90.0, 80.0, 80.0], [60.0, 60.0]]
    """
    both = [m for m in moments if m.bound is not None and m.incumbent is not None]
    end = max(seconds, moments[-1].seconds if moments else 0.0)
    shade = [m.seconds for m in both] + [end] * bool(both)
    data = []
    for field, fill in (("bound", "none"), ("incumbent", "tonexty")):
        values = [getattr(m, field) for m in both]
        data.append(
            {
                "type": "scatter", "x": shade, "y": values + values[-1:], "mode": "lines", "hoverinfo": "skip",
                "line": {"width": 0, "shape": "hv"}, "fill": fill, "fillcolor": "rgba(86,180,233,0.3)",
                "showlegend": False,
            }
        )  # fmt: skip
    looks = (
        ("proven bound", "bound", _BOUND, "dash"),
        ("best placement so far", "incumbent", _BEST, "solid"),
    )
    for name, field, colour, dash in looks:
        known = [(m.seconds, getattr(m, field)) for m in moments if getattr(m, field) is not None]
        known = [step for i, step in enumerate(known) if i == 0 or step[1] != known[i - 1][1]]
        known += [(end, known[-1][1])] if known else []
        data.append(
            {
                "type": "scatter", "x": [x for x, _ in known], "y": [y for _, y in known], "name": name,
                "mode": "lines+markers" if field == "incumbent" else "lines", "marker": {"size": 9},
                "line": {"color": colour, "dash": dash, "width": 3, "shape": "hv"},
                "hovertemplate": "%{x:.2f} s: %{y:,.6g} tokens/s<extra>" + name + "</extra>",
            }
        )  # fmt: skip
    layout = {
        "title": {"text": f"{title}<br><sup>{note}</sup>"}, "height": 320, "margin": {"t": 84, "b": 52},
        "showlegend": True,
        "xaxis": {"title": {"text": "seconds of solving"}, "range": [0, max(end, 1.0) * 1.02], "gridcolor": GRID},
        "yaxis": {"title": {"text": "tokens/s"}, "rangemode": "tozero", "gridcolor": GRID, "autorange": True},
    }  # fmt: skip
    return {"data": data, "layout": layout}
