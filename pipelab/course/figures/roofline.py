"""The roofline as Williams et al. draw it: what a layer reaches, over its arithmetic intensity."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelab.cluster import GPU
from pipelab.figures.theme import GRID, colour_of_types, template
from pipelab.hardware.roofline.cost_model import Roofline
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.pass_times import hardware_of
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Workload

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_SYMBOLS = {"decode": "circle", "prefill": "diamond"}


class Roof(NamedTuple):
    """What a type of GPU reaches at most."""

    flop_per_s: float
    byte_per_s: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which on computing takes longer than reading."""
        return self.flop_per_s / self.byte_per_s


def roof_of(costs: Roofline, model: Transformer, gpu: str) -> Roof:
    """Return what a type of GPU reaches in prompts of this model."""
    hardware = hardware_of(costs, Demand(model, Workload(1, 1)), [GPU(gpu, 1)]).take(0)
    return Roof(float(hardware.flops), float(hardware.bandwidth))


def arithmetic_intensity(model: Transformer, load: Workload) -> float:
    """Return FLOPs per byte of an ordinary layer: of its matrices and attention, over all that it moves.

    Parameters
    ----------
    model : Transformer
        Whose layer it is.
    load : Workload
        Its batch passes once.

    Returns
    -------
    float
        In FLOP/byte; each weight counts once, with its keys, values and activations.

    Raises
    ------
    InvalidValue
        A number of the model does not fit.

    Examples
    --------
    >>> import pipelab as pl
    >>> llama = pl.load_model("Llama-3-70B")
    >>> round(arithmetic_intensity(llama, Workload(2048, 1, "decode")), 2)  # two FLOPs per two bytes
    1.03
    """
    flops, moved = _work(model, load)
    return flops / moved


def _work(model: Transformer, load: Workload) -> tuple[float, float]:
    demand, b = Demand(model, load), float(load.batch_size)
    flops = demand.layer_flops("ordinary", b) + b * demand.attention_flops()
    moved = demand.layer_weight_bytes("ordinary", b) + demand.kv_bytes(b)
    return float(flops), float(moved + demand.activation_bytes(b))


def plot_roofline(
    costs: Roofline, model: Transformer, gpus: Sequence[str], loads: Mapping[str, Workload]
) -> "Figure":
    """Draw the roof of every GPU type, and where a layer lies under it.

    Parameters
    ----------
    costs : Roofline
        Its reached FLOP/s and bytes/s are the roofs, its `layer_times` the points.
    model : Transformer
        Whose ordinary layer it is.
    gpus : sequence of str
        Types.
    loads : mapping of str to Workload
        What is written beside the points.

    Returns
    -------
    plotly.graph_objects.Figure
        FLOP/s over FLOP/byte, both on logarithmic axes; the title has the ridge points.

    Raises
    ------
    UnknownName
        The type of a GPU is not known.
    InvalidValue
        A number of the model does not fit.
    """
    import plotly.graph_objects as go

    figure, colours = go.Figure(), colour_of_types(gpus)
    roofs = {gpu: roof_of(costs, model, gpu) for gpu in gpus}
    at = {name: arithmetic_intensity(model, load) for name, load in loads.items()}
    edges = np.array([0.2 * min(at.values()), 2 * max(at.values())])
    for place, (gpu, roof) in enumerate(roofs.items()):
        x = np.array([edges[0], roof.ridge, edges[1]])
        figure.add_trace(
            go.Scatter(
                x=x, y=np.minimum(roof.flop_per_s, roof.byte_per_s * x) / 1e12, name=gpu, mode="lines",
                line={"color": colours[gpu], "width": 3}, legendgroup=gpu,
                hovertemplate=f"{gpu}: ridge at {roof.ridge:.0f} FLOP/byte<extra></extra>",
            )
        )  # fmt: skip
        flops = np.array([_work(model, load)[0] for load in loads.values()])
        seconds = [costs.layer_times(model, load, GPU(gpu, 1))["layer"] for load in loads.values()]
        figure.add_trace(
            go.Scatter(
                x=list(at.values()), y=flops / seconds / 1e12, mode="markers+text" if place == 0 else "markers",
                text=list(at), textposition="top left", showlegend=False, legendgroup=gpu,
                marker={
                    "color": colours[gpu], "size": 11, "line": {"color": "white", "width": 1},
                    "symbol": [_SYMBOLS.get(load.phase, "circle") for load in loads.values()],
                },
                hovertemplate=f"{gpu}, %{{text}}: %{{y:.3g}} TFLOP/s at %{{x:.3g}} FLOP/byte<extra></extra>",
            )
        )  # fmt: skip
    ridges = ", ".join(f"{roof.ridge:.0f} ({gpu})" for gpu, roof in roofs.items())
    figure.update_xaxes(
        type="log", gridcolor=GRID, dtick=1, tickformat="~r", title="FLOPs per byte"
    )
    figure.update_yaxes(
        type="log", gridcolor=GRID, dtick=1, tickformat="~r", title="TFLOP/s of a layer"
    )
    figure.update_layout(
        template=template(), height=460, title=f"Ridge points at {ridges} FLOPs per byte"
    )
    return figure
