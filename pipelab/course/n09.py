"""Notebook 09, Real GPUs: the roofline as a picture, what a layer waits for, and a calibration."""

import math
import random
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from pipelab.cluster import GPU
from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import finish, plot_lines
from pipelab.display import DataFrame, Figure, counted
from pipelab.engine.speed_scenarios import Sensitivity
from pipelab.figures import theme
from pipelab.files.bundled_folders import data_dir
from pipelab.hardware.measurements import against_measured
from pipelab.hardware.pass_times import Demand
from pipelab.hardware.roofline import Roofline
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Workload

# The roofline as Williams et al. draw it


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
    hardware = costs.hardware(Demand(model, Workload(1, 1)), [GPU(gpu, 1)]).take(0)
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
    ordinary = model.layer_kinds[0]
    flops = demand.layer_flops(ordinary, b) + b * demand.attention_flops(ordinary)
    moved = demand.layer_weight_bytes(ordinary, b) + demand.kv_bytes(ordinary, b)
    return float(flops), float(moved + demand.activation_bytes(b))


def plot_roofline(
    costs: Roofline, model: Transformer, gpus: Sequence[str], loads: Mapping[str, Workload]
) -> Figure:
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
    figure, colours = theme.new_figure(), theme.colour_of_types(gpus)
    roofs = {gpu: roof_of(costs, model, gpu) for gpu in gpus}
    at = {name: arithmetic_intensity(model, load) for name, load in loads.items()}
    work = [_work(model, load)[0] for load in loads.values()]
    shapes = [_SYMBOLS.get(load.phase, "circle") for load in loads.values()]
    for place, (gpu, roof) in enumerate(roofs.items()):
        x = np.array([0.2 * min(at.values()), roof.ridge, 2 * max(at.values())])
        reached = np.minimum(roof.flop_per_s, roof.byte_per_s * x) / 1e12
        hover = f"{gpu}: ridge at {roof.ridge:.0f} FLOP/byte<extra></extra>"
        together: dict[str, Any] = {"legendgroup": gpu, "hovertemplate": hover}
        figure.add_trace(theme.line(gpu, x, reached, colours[gpu], 3, **together))
        seconds = [costs.layer_times(model, load, GPU(gpu, 1))["layer"] for load in loads.values()]
        rim = {"line": {"color": "white", "width": 1}}
        figure.add_scatter(
            x=list(at.values()),
            y=np.array(work) / seconds / 1e12,
            mode="markers+text" if place == 0 else "markers",
            text=list(at),
            textposition="top left",
            showlegend=False,
            legendgroup=gpu,
            marker={"color": colours[gpu], "size": 11, "symbol": shapes, **rim},
            hovertemplate=f"{gpu}, %{{text}}: %{{y:.3g}} TFLOP/s at %{{x:.3g}} FLOP/byte<extra></extra>",
        )
    ridges = ", ".join(f"{roof.ridge:.0f} ({gpu})" for gpu, roof in roofs.items())
    decades = {"type": "log", "dtick": 1, "tickformat": ",~r"}
    return finish(
        figure,
        f"Ridge points at {ridges} FLOPs per byte",
        height=460,
        x={"title": "FLOPs per byte", **decades},
        y={"title": "TFLOP/s of a layer", **decades},
    )


# Stages that were measured for the course


def measured_stages() -> DataFrame:
    """Return the stages of `data/stage_times.csv` with what the roofline predicts.

    Returns
    -------
    pandas.DataFrame
        As `pl.hardware.against_measured` makes it; times in ms.

    Examples
    --------
    >>> stages = measured_stages()
    >>> len(stages), sorted(set(stages["gpu_type"]))
    (88, ['H100-SXM', 'H200-SXM'])
    """
    return against_measured(path=data_dir() / "stage_times.csv")


_HELD_OUT = "H200-SXM"  # nothing was fitted to it


def plot_measured_stages(stages: DataFrame) -> Figure:
    """Draw by how much each predicted stage is off: decode over its batch, prefill over its tokens.

    Parameters
    ----------
    stages : pandas.DataFrame
        As `measured_stages` returns it.

    Returns
    -------
    plotly.graph_objects.Figure
        A point per stage, predicted / measured time - 1 in per cent; the title has the median sizes of
        the errors of the GPU type that nothing was fitted to.
    """
    import plotly.express as px

    phases = {
        "decode": "decode: sequences in the batch",
        "prefill": "prefill: tokens of all prompts in the pass",
    }
    per_sequence = stages["tokens"].where(stages["phase"] == "prefill", 1)
    figure = px.scatter(
        stages.assign(error=100 * stages["error"], tokens=stages["batch"] * per_sequence),
        x="tokens",
        y="error",
        log_x=True,
        facet_col="phase",
        color="gpu_type",
        symbol="model",
        hover_name="what",
        hover_data=["measured", "predicted"],
        category_orders={"phase": list(phases)},
        color_discrete_map=theme.colour_of_types(stages["gpu_type"]),
        labels={"gpu_type": "GPU"},
    )
    figure.update_traces(marker={"size": 10, "opacity": 0.75})
    figure.layout.annotations = ()  # the axes name the phases
    figure.add_hline(y=0, line={"color": theme.NEUTRAL_LIGHT, "width": 2}, layer="below")
    off = 100 * stages[stages["gpu_type"] == _HELD_OUT].groupby("phase")["error"].agg(_median_off)
    finish(
        figure,
        f"{_HELD_OUT}, which nothing was fitted to: in the median "
        f"{off['decode']:.1f}% off in decode, {off['prefill']:.1f}% in prefill",
        "each point is a stage of 1 to 30 layers",
        height=460,
        y={"title": "predicted time against measured, %"},
    )
    for column, title in enumerate(phases.values(), 1):
        figure.update_xaxes(matches=None, dtick=1, tickformat=",d", title=title, row=1, col=column)
    return figure


def _median_off(errors: Any) -> float:
    return float(errors.abs().median())


# A plan where GPUs are faster or slower than predicted


def plot_sensitivity(found: "Sensitivity", robust: "Sensitivity | None" = None) -> Figure:
    """Draw the share of the best rate that a plan keeps, over the factor of each thing that may be off.

    Parameters
    ----------
    found : Sensitivity
        Made by `pl.sensitivity`.
    robust : Sensitivity, optional
        Of another plan, such as the one that loses least, drawn in dots.

    Returns
    -------
    plotly.graph_objects.Figure
        A line per GPU type, for all together and for links. Each marker is a proven solve; lines between are straight.

    Examples
    --------
    >>> import pipelab as pl
    >>> from pipelab import course
    >>> figure = plot_sensitivity(pl.sensitivity(course.five_gpus(), within=0.1))
    >>> [trace.name for trace in figure.data]
    ['links', 'all GPUs', 'T4', 'L4', 'A100-SXM-40']
    """
    figure = theme.new_figure()
    names = dict.fromkeys(s.what for s in found.scenarios[1:] if "," not in s.what)
    colours = theme.colour_of_types(names) | {
        "links": theme.NEUTRAL_LIGHT,
        "all GPUs": theme.NEUTRAL,
    }
    for plan, look in [(found, "solid"), *([(robust, "dot")] if robust else [])]:
        for name in reversed(names):
            cases = [s for s in (*plan.scenarios, *plan.turns) if s.what == name or s.factor == 1]
            ends = sorted((100 * (s.factor - 1), 100 * (1 - s.loss)) for s in cases)
            x, y = zip(*ends, strict=True)
            hover = "%{x:+.1f}%: keeps %{y:.1f}%<extra></extra>"
            more: dict[str, Any] = {"mode": "lines+markers", "hovertemplate": hover}
            more["showlegend"] = plan is found
            wide = {"links": 10.0, "all GPUs": 5.0}.get(name, 2.5)  # others cover them
            figure.add_trace(
                theme.line(theme.plain(name), x, y, colours[name], wide, {"dash": look}, **more)
            )
    axes = {"x": "% faster than predicted", "y": "% of the best rate kept"}
    note = f"dotted: another plan, which loses up to {robust.worst.loss:.1%}" if robust else ""
    return finish(figure, found.sentence, note, **axes)


# Exercises


MEASURING = 0.1  # standard deviation of the logarithm of a measured time, as in the kit's fit


def _layer(chance: random.Random) -> Given | None:
    """What a layer reads per pass and per sequence, what it computes per sequence, and how fast."""
    weights, cache = chance.randint(1, 60), chance.choice((0, 1, 1, 2, 4))
    flops, bandwidth, speed = (chance.randint(1, 9) for _ in range(3))
    gain = flops * bandwidth - cache * speed
    if gain > 0 and weights * speed % gain == 0:
        return None  # a tie would be decided by rounding
    return Given(weights=weights, cache=cache, flops=flops, bandwidth=bandwidth, speed=speed)


def _crossing(given: Given) -> float:
    """In whole numbers: b · flops · bandwidth ≥ (weights + b · cache) · speed."""
    gain = given.flops * given.bandwidth - given.cache * given.speed
    return max(1, -(-given.weights * given.speed // gain)) if gain > 0 else math.inf


def _draw_layer(failure: Failure) -> Figure:
    given = failure.given
    cross = _crossing(given)
    never = math.isinf(cross)
    most = 12 if never else max(4, int(1.6 * cross))
    batches = sorted({1 + round(i * (most - 1) / 24) for i in range(25)})
    computing = [b * given.flops / given.speed for b in batches]
    reading = [(given.weights + b * given.cache) / given.bandwidth for b in batches]
    text, at = "Reading always takes longer than computing", None
    if not never:
        first = counted(int(cross), "sequence")
        text = f"Computing takes at least as long as reading from {first} on"
        at = (cross, cross * given.flops / given.speed)
    lines = {"computing": computing, "reading": reading}
    return plot_lines(batches, lines, text, ("sequences", "seconds"), at)


def _look_at_layer(given: Given) -> str:
    if math.isinf(_crossing(given)):
        return "what does one more sequence add to reading, and what to computing?"
    if _crossing(given) == 1:
        return "there is no batch without a sequence: the least answer is 1"
    if given.cache:
        return "each sequence also brings `cache` bytes to read"
    return "a fraction of a sequence does not exist: which way do you round?"


def _rows(chance: random.Random) -> Given | None:
    """Predicted and measured times, and how unsure the default is."""
    true = math.exp(chance.gauss(0, 0.3))
    rows = []
    for _ in range(chance.randint(1, 5)):
        predicted = chance.randint(1, 40)
        rows.append((predicted, round(predicted * true * math.exp(chance.gauss(0, 0.1)), 1)))
    if min(measured for _, measured in rows) <= 0:
        return None
    return Given(rows=rows, unsure=chance.choice((0.05, 0.15, 0.5)))


def _factor(given: Given) -> float:
    logs = [math.log(measured / predicted) for predicted, measured in given.rows]
    return math.exp(sum(logs) / MEASURING**2 / (len(logs) / MEASURING**2 + 1 / given.unsure**2))


def _mean_ratio(given: Given) -> float:
    return geometric_mean(measured / predicted for predicted, measured in given.rows)


def _look_at_rows(given: Given) -> str:
    if len(given.rows) == 1:
        return "with ln x as the unknown this is a parabola; where is its lowest point?"
    return "what counts is the mean of logarithms, drawn towards 0 by the last term"


EXERCISES: dict[str, Exercise] = {
    "09.1": Function(
        signature="crossing(weights, cache, flops, bandwidth, speed)",
        inputs=drawn(91, 200, _layer, lambda given: given.weights + given.cache),
        target=_crossing,
        hint=_look_at_layer,
        picture=_draw_layer,
        half=lambda given, _: math.isinf(_crossing(given)),
    ),
    "09.2": Function(
        signature="factor(rows, unsure)",
        inputs=drawn(92, 200, _rows, lambda given: len(given.rows)),
        target=_factor,
        hint=_look_at_rows,
        half=lambda given, answer: math.isclose(answer, _mean_ratio(given)),
    ),
}
