"""The classes of a cluster as a picture: bandwidth from every GPU to every other."""

import math

import numpy as np

from pipelab.cluster import Cluster
from pipelab.display import Figure
from pipelab.engine.classes import gpu_classes
from pipelab.figures.theme import BOTTLENECK, figure_of, finish, plain


def plot_classes(cluster: Cluster) -> Figure:
    """Draw the bandwidth from every GPU to every other, the GPUs of one class side by side and framed.

    Parameters
    ----------
    cluster : Cluster
        Small enough for a cell per pair of GPUs.

    Returns
    -------
    plotly.graph_objects.Figure
        A heat map in Gb/s; rows send, columns receive. Of more than six speeds, a colour stands for
        a power of ten.
    """
    classes = gpu_classes(cluster)
    order = np.concatenate(classes.members)
    matrix = 8 * cluster.bandwidth_matrix()[np.ix_(order, order)]  # Gb/s, as networks are named
    np.fill_diagonal(matrix, np.nan)  # no GPU sends to itself
    speeds = np.unique(matrix[~np.isnan(matrix)])
    if len(speeds) > 6:
        speeds = 10.0 ** np.arange(math.floor(np.log10(speeds[0])), np.log10(speeds[-1]) + 1)
        level, ticks = np.log10(matrix), np.log10(speeds)
    else:  # as far apart as colours can be
        level, ticks = np.searchsorted(speeds, matrix).astype(float), np.arange(len(speeds))
        np.fill_diagonal(level, np.nan)
    names = [f"GPU {g} ({plain(cluster.gpus[g].type)})" for g in order]
    cells = {
        "type": "heatmap",
        "z": level,
        "colorscale": "Cividis",
        "colorbar": {
            "title": {"text": "Gb/s"},
            "tickvals": ticks,
            "ticktext": [f"{v:g}" for v in speeds],
        },
        "customdata": [
            [f"{sender} to {receiver}: {v:g}" for receiver, v in zip(names, row, strict=True)]
            for sender, row in zip(names, matrix, strict=True)
        ],
        "hovertemplate": "%{customdata} Gb/s<extra></extra>",
        "hoverongaps": False,
    }
    ends = np.cumsum(classes.count) - 0.5
    starts = ends - classes.count
    frames = [
        {"type": "rect", "x0": a, "x1": b, "y0": a, "y1": b, "line": line}
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        for line in (
            {"color": "white", "width": 3},
            {"color": BOTTLENECK, "width": 1.5, "dash": "dot"},
        )
    ]
    axis = {
        "tickvals": ((starts + ends) / 2).tolist(),
        "ticktext": [
            f"{c} × {plain(name)}" for c, name in zip(classes.count, classes.names, strict=True)
        ],
        "showgrid": False,
        "constrain": "domain",
    }
    noun = "class" if len(classes) == 1 else "classes"
    parts = finish(
        [cells],
        f"{len(order)} GPUs are {len(classes)} {noun} of interchangeable ones",
        "rows send, columns receive; frames hold GPUs that differ in nothing",
        x={**axis, "tickangle": -35},
        y={**axis, "autorange": "reversed", "scaleanchor": "x"},
        height=520,
        margin={"b": 110},
        shapes=frames,
    )
    return figure_of(parts)
