"""A solve as it went or goes: incumbent and bound as step lines, the gap between them shaded."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pipelab.engine.solvers.solver_run import Progress
from pipelab.figures.theme import TYPE_COLOURS, finish, line

_BOUND, _BEST = TYPE_COLOURS[:2]


def progress_parts(moments: Sequence[Progress], seconds: float, title: str, note: str = "") -> dict:
    """Return the drawing of what was known when, up to now.

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
    >>> first = Progress(seconds=0.5, incumbent=None, bound=90.0, nodes=1)
    >>> moments = [first, Progress(seconds=1.0, incumbent=60.0, bound=80.0, nodes=5)]
    >>> [trace["y"] for trace in progress_parts(moments, 2.0, "running")["data"]]
    [[80.0, 80.0], [60.0, 60.0], [90.0, 80.0, 80.0], [60.0, 60.0]]
    """
    moments = [m if m.bound != math.inf else replace(m, bound=None) for m in moments]
    both = [m for m in moments if m.bound is not None and m.incumbent is not None]
    end = max(seconds, moments[-1].seconds if moments else 0.0)
    shade = [m.seconds for m in both] + [end] * bool(both)
    data = []
    for field, fill in (("bound", "none"), ("incumbent", "tonexty")):
        values = [getattr(m, field) for m in both]
        filled = {"fill": fill, "fillcolor": "rgba(86,180,233,0.3)", "showlegend": False}
        ends = values + values[-1:]
        data.append(line("gap", shade, ends, _BOUND, 0, {"shape": "hv"}, **filled))
    for name, field, colour, dash in (
        ("proven bound", "bound", _BOUND, "dash"),
        ("best placement so far", "incumbent", _BEST, "solid"),
    ):
        known = [(m.seconds, getattr(m, field)) for m in moments if getattr(m, field) is not None]
        known = [step for i, step in enumerate(known) if i == 0 or step[1] != known[i - 1][1]]
        known += [(end, known[-1][1])] if known else []
        data.append(
            line(
                name,
                [x for x, _ in known],
                [y for _, y in known],
                colour,
                3,
                {"dash": dash, "shape": "hv"},
                mode="lines+markers" if field == "incumbent" else "lines",
                marker={"size": 9},
                hovertemplate=f"%{{x:.2f}} s: %{{y:,.6g}} tokens/s<extra>{name}</extra>",
            )
        )
    return finish(
        data,
        title,
        note,
        x={"title": "seconds of solving", "range": [0, 1.02 * (end or 1.0)]},
        y={"title": "tokens/s", "rangemode": "tozero", "autorange": True},
        height=340,
        showlegend=True,
    )
