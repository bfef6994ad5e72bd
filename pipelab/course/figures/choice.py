"""What an integer program chose: stages as boxes over GPUs and layers, links as arrows between them."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipelab.candidates import Allocation, Connection
from pipelab.display import counted
from pipelab.figures.theme import GRID, colour_of_types, ink_on, plain, template
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    import plotly.graph_objects as go

_CHOSEN = 0.5  # of a variable that should be 0 or 1


def plot_choice(
    problem: Problem,
    allocations: Sequence[Allocation],
    z: Any,
    claim: float,
    connections: Sequence[Connection] = (),
    e: Any = (),
) -> "go.Figure":
    """Chosen allocations as boxes, one row per GPU; chosen connections as arrows.

    Also of a choice that is no placement: the title says what is wrong.

    Parameters
    ----------
    problem : Problem
        Whose GPUs and layers these are.
    allocations : sequence of Allocation
        The candidates.
    z : sequence of float
        1 for those that are chosen.
    claim : float
        What the program says it reaches, in tokens/s.
    connections, e : sequence, optional
        The same for links. Of those that leave a chosen stage, the fastest is drawn; a receiver
        that is not chosen is an empty, dotted box.

    Returns
    -------
    plotly.graph_objects.Figure
        Boxes that overlap share a GPU and a layer.
    """
    import plotly.graph_objects as go

    chosen = [a for a, value in zip(allocations, z, strict=True) if value > _CHOSEN]
    used = list(_links(allocations, chosen, connections, e).items())
    figure = go.Figure()
    for end in dict.fromkeys(receiver for _, receiver in used if receiver not in chosen):
        _box(figure, end, "rgba(255,255,255,0)", dash="dot")
    gpus = problem.cluster.gpus
    colours = colour_of_types(gpu.type for gpu in gpus)
    for a in chosen:
        _box(figure, a, colours[gpus[a.gpus[0]].type])
        middle = (a.layers.start + a.layers.stop + 1) / 2, (a.gpus[0] + a.gpus[-1]) / 2
        colour = ink_on(colours[gpus[a.gpus[0]].type])
        figure.add_annotation(
            x=middle[0], y=middle[1], text=f"{a.rate:,.0f}", showarrow=False, font={"color": colour, "size": 12}
        )  # fmt: skip
    for sender, receiver in used:
        _arrow(figure, sender, receiver)
    for kind, colour in colours.items():  # the legend
        figure.add_bar(x=[None], y=[None], name=plain(kind), marker={"color": colour})
    note = "boxes: chosen stages, with their tokens/s"
    note += "; arrows: chosen links; dotted: not chosen" if connections else ""
    layers = problem.model.layers
    figure.update_layout(
        template=template(), title=f"{_says(problem, chosen, claim)}<br><sup>{note}</sup>", height=330,
        margin={"t": 84, "b": 46, "l": 120},
        xaxis={"title": {"text": "block of layers"}, "range": [0.45, layers + 0.55], "dtick": 1, "showgrid": False,
               "zeroline": False},
        yaxis={"range": [len(gpus) - 0.45, -0.55], "tickvals": list(range(len(gpus))), "gridcolor": GRID,
               "zeroline": False,
               "ticktext": [f"GPU {g} · {plain(gpu.type)}" for g, gpu in enumerate(gpus)]},
    )  # fmt: skip
    return figure


def _links(
    allocations: Sequence[Allocation],
    chosen: Sequence[Allocation],
    connections: Sequence[Connection],
    e: Any,
) -> dict[Allocation, Allocation]:
    """Receiver by sender. Programs may switch on hundreds of links that cost them nothing."""
    on = [c for c, value in zip(connections, e, strict=True) if value > _CHOSEN]
    on.sort(key=lambda c: c.rate)
    ends = [(allocations[c.sender], allocations[c.receiver]) for c in on]
    return {sender: receiver for sender, receiver in ends if sender in chosen}


def _box(figure: "go.Figure", a: Allocation, colour: str, dash: str = "solid") -> None:
    figure.add_shape(
        type="rect", x0=a.layers.start + 0.54, x1=a.layers.stop + 0.46, y0=a.gpus[0] - 0.4, y1=a.gpus[-1] + 0.4,
        fillcolor=colour, line={"color": "#444444", "width": 1.2, "dash": dash}
    )  # fmt: skip


def _arrow(figure: "go.Figure", sender: Allocation, receiver: Allocation) -> None:
    """From the right edge of one box to the left edge of the other."""
    figure.add_annotation(
        x=receiver.layers.start + 0.56, y=(receiver.gpus[0] + receiver.gpus[-1]) / 2,
        ax=sender.layers.stop + 0.44, ay=(sender.gpus[0] + sender.gpus[-1]) / 2,
        xref="x", yref="y", axref="x", ayref="y", showarrow=True, arrowhead=2, arrowwidth=2.5,
        arrowcolor="#222222", text="",
    )  # fmt: skip


def _says(problem: Problem, chosen: Sequence[Allocation], claim: float) -> str:
    """The claim, and what is true."""
    from pipelab.evaluation import evaluate

    said = f"The program claims {claim:,.1f} tokens/s"
    stages = Counter(g for a in chosen for g in a.gpus)
    gpu, most = max(stages.items(), key=lambda item: item[1], default=(0, 0))
    layers = [layer for a in chosen for layer in a.layers]
    if most > 1:
        return f"{said}, with {counted(most, 'stage')} on GPU {gpu}"
    if sorted(layers) != list(range(problem.model.layers)):
        return f"{said}, with {len(layers)} of {problem.model.layers} blocks placed"
    ordered = sorted(chosen, key=lambda a: a.layers.start)
    placement = Placement.of([(len(a.layers), a.gpus) for a in ordered])
    true = evaluate(problem, placement).throughput
    if abs(true - claim) < 1e-6 * true:
        return f"{said}, and that is what the placement reaches"
    return f"{said}; the placement reaches {true:,.1f}"
