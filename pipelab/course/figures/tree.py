"""A branch-and-bound search as pictures: its tree, and how bound and incumbent meet."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelab.figures.theme import GRID, TYPE_COLOURS, WRONG, plain, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SAME = 1e-6  # a gap smaller than this is none
_SPELT_OUT = 2  # levels of the tree that have room for the question in words

Node = Mapping[str, Any]  # parent (its number, or None), choice, bound, best and fate

# Symbol and colour of a node by its fate.
_FATES = {
    "branched": ("circle", "#0072B2"),
    "placement": ("star", "#009E73"),
    "cut off": ("square", "#999999"),
    "infeasible": ("x", WRONG),
}


def plot_tree(nodes: Sequence[Node]) -> "go.Figure":
    """Every node with its bound below its parent, and why nothing is below it.

    Parameters
    ----------
    nodes : sequence of dict
        In the order in which they were solved. `parent` is a number in this list (None for the
        first), `choice` what was decided on the way from there, `bound` the relaxation's value,
        `best` the best placement known afterwards, `fate` "branched", "placement", "cut off" or
        "infeasible".

    Returns
    -------
    plotly.graph_objects.Figure
        Bounds in tokens/s.
    """
    import plotly.graph_objects as go

    children: dict[int, list[int]] = {n: [] for n in range(len(nodes))}
    for n, node in enumerate(nodes):
        if node["parent"] is not None:
            children[node["parent"]].append(n)
    x: dict[int, float] = {}
    depth: dict[int, int] = {}
    _lay_out(0, 0, children, x, depth)
    figure = go.Figure()
    ends = [(n, node["parent"]) for n, node in enumerate(nodes) if node["parent"] is not None]
    for wanted, dash in (("yes", "solid"), ("no", "dot")):
        pairs = [(n, p) for n, p in ends if nodes[n]["choice"].endswith(wanted)]
        figure.add_scatter(
            x=[v for n, p in pairs for v in (x[p], x[n], None)],
            y=[v for n, p in pairs for v in (depth[p], depth[n], None)],
            mode="lines", name=wanted, line={"color": "#777777", "width": 1.5, "dash": dash},
            hoverinfo="skip",
        )  # fmt: skip
    asks = {p: nodes[n]["choice"].partition(":")[0] for n, p in ends}
    for fate, (symbol, colour) in _FATES.items():
        own = [n for n, node in enumerate(nodes) if node["fate"] == fate]
        said = [f"{nodes[n]['bound']:,.0f}" if fate != "infeasible" else "" for n in own]
        spelt = [
            f"{plain(asks[n])}?<br>{text}" if n in asks and depth[n] < _SPELT_OUT else f" {text}"
            for n, text in zip(own, said, strict=True)
        ]
        if own:
            figure.add_scatter(
                x=[x[n] for n in own], y=[depth[n] for n in own], name=fate, mode="markers+text",
                marker={"symbol": symbol, "size": 13, "color": colour}, text=spelt,
                textposition=[_beside(n, nodes[n], x, depth) for n in own], textfont={"size": 11},
                customdata=[[plain(nodes[n]["choice"]) or "the root", t] for n, t in zip(own, said, strict=True)],
                hovertemplate="%{customdata[0]}<br>bound %{customdata[1]} tokens/s<extra>" + fate + "</extra>",
            )  # fmt: skip
    best = nodes[-1]["best"]
    note = "numbers: the node's bound in tokens/s; hover over a node for the choice that led to it"
    title = f"{len(nodes)} nodes prove that {best:,.1f} tokens/s is the optimum"
    figure.update_layout(
        template=template(), height=160 + 62 * (1 + max(depth.values())), legend={"y": 1.0},
        title=f"{title}<br><sup>{note}</sup>",
        xaxis={"visible": False}, margin={"t": 92, "b": 24, "l": 70},
        yaxis={"title": {"text": "decisions made"}, "range": [max(depth.values()) + 0.6, -0.9], "dtick": 1,
               "showgrid": False, "zeroline": False},
    )  # fmt: skip
    return figure


def _beside(n: int, node: Node, x: Mapping[int, float], depth: Mapping[int, int]) -> str:
    """Where the text of a node crosses no edge."""
    if node["fate"] != "branched":
        return "bottom center"
    if node["parent"] is None:
        return "top center"
    if depth[n] < _SPELT_OUT:
        return "top left" if x[n] < x[node["parent"]] else "top right"
    return "middle right"


def _lay_out(
    n: int,
    level: int,
    children: Mapping[int, Sequence[int]],
    x: dict[int, float],
    depth: dict[int, int],
) -> None:
    """Leaves side by side, every other node above the middle of its children."""
    depth[n] = level
    for child in children[n]:
        _lay_out(child, level + 1, children, x, depth)
    if children[n]:
        x[n] = sum(x[child] for child in children[n]) / len(children[n])
    else:
        x[n] = float(sum(not children[m] for m in x))


def plot_closing(searches: Mapping[str, Sequence[Node]]) -> "go.Figure":
    """Bound and incumbent of several searches, node by node.

    Parameters
    ----------
    searches : mapping of name to nodes
        As `plot_tree` takes them, of searches that take the node of the highest bound first.

    Returns
    -------
    plotly.graph_objects.Figure
        In tokens/s, on a logarithmic axis; solid lines are incumbents, dashed ones bounds.
    """
    import plotly.graph_objects as go

    figure, said = go.Figure(), []
    for (label, nodes), colour in zip(searches.items(), TYPE_COLOURS, strict=False):
        name, best = plain(label), nodes[-1]["best"]
        # The node of the highest bound is next, so nothing that is left exceeds its parent's bound.
        bounds = [nodes[node["parent"] or 0]["bound"] for node in nodes] + [_open_bound(nodes)]
        found = [node["best"] or None for node in nodes]
        for values, what, dash in (
            (bounds, "bound", "dash"),
            ([*found, best], "incumbent", "solid"),
        ):
            figure.add_scatter(
                x=list(range(1, len(nodes) + 2)), y=values, name=f"{name}: {what}", mode="lines", line_shape="hv",
                line={"color": colour, "dash": dash, "width": 3},
                hovertemplate="node %{x}: %{y:,.1f} tokens/s<extra>" + f"{name}, {what}</extra>",
            )  # fmt: skip
        gap = bounds[-1] / best - 1
        state = f"open by {gap:.0%}" if gap > _SAME else "proven"
        said.append(f"{name}: {state} after {len(nodes)} nodes")
    most = max(len(nodes) for nodes in searches.values())
    note = "dashed: the bound; solid: the best placement so far (the incumbent)"
    figure.update_layout(
        template=template(), height=400, title=f"Bound and placement meet – {'; '.join(said)}<br><sup>{note}</sup>",
        xaxis={"title": {"text": "nodes solved"}, "range": [0, 1.04 * most + 1]}, margin={"t": 104}, legend={"y": 1.0},
        yaxis={"title": {"text": "tokens/s (log scale)"}, "type": "log", "gridcolor": GRID,
               "tickvals": [2000, 3000, 4000, 5000, 7000, 10000, 15000], "tickformat": ","},
    )  # fmt: skip
    return figure


def _open_bound(nodes: Sequence[Node]) -> float:
    """What the best placement may still be: the highest bound of a node that is not done."""
    best, children = nodes[-1]["best"], Counter(node["parent"] for node in nodes)
    left = [
        node["bound"]
        for n, node in enumerate(nodes)
        if node["fate"] == "branched" and children[n] < len(("yes", "no"))
    ]
    return max([best, *left])
