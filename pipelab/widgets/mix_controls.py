"""The controls of the mix explorer: values in, values out; they do not depend on what is drawn."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import ipywidgets as widgets
import traitlets

from pipelab.problem import CostModel
from pipelab.widgets.explorer_parts import ControlPanel, choice, integer, menu
from pipelab.widgets.mix_values import Mix, beginning, cost_models, engines, sources, types_of

_NOT_SET = 0  # stands for None, which a slider takes for nothing chosen


class _Choices(NamedTuple):
    """The numbers of a slider beside those that a mix brings, and how they are written."""

    label: str
    numbers: tuple[float, ...]
    text: str = "{}"
    words: Mapping[float, str] = {}


_NUMBERS = {
    "batch": _Choices(
        "batch (sequences)",
        (_NOT_SET, 1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512),
        words={_NOT_SET: "chosen"},
    ),
    "context": _Choices(
        "context (tokens)",
        (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
    ),
    "output_tokens": _Choices("answer (tokens)", (16, 32, 64, 128, 200, 256, 512, 1024, 2048)),
    "tpot_ms": _Choices(
        "TPOT, at most",
        (_NOT_SET, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000),
        text="{:,.7g} ms",
        words={_NOT_SET: "no limit"},
    ),
    "ttft_ms": _Choices(
        "TTFT, at most",
        (_NOT_SET, 50, 100, 200, 500, 1000, 2000, 3000, 5000, 10_000, 20_000),
        text="{:,.7g} ms",
        words={_NOT_SET: "no limit"},
    ),
    "network_gb_per_s": _Choices(
        "network, any to any",
        (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 12.5, 25.0, 50.0, 100.0, 200.0, 400.0),
        text="{:g} GB/s",
        words={_NOT_SET: "the case's"},
    ),
    "gpus_per_node": _Choices("nodes of … GPUs", (1, 2, 4, 8), words={1: "no nodes"}),
}
_GROUPS = {
    "Model and workload": (
        *("source", "costs", "phase", "batch", "context", "output_tokens", "in_flight"),
    ),
    "Limits for requests": ("tpot_ms", "ttft_ms"),
    "Network and stages": (
        *("network_gb_per_s", "gpus_per_node", "gpus_per_stage", "batch_split", "runs_on"),
        *("within",),
    ),
}
_SERVING_ALONE = ("phase", "batch", "in_flight", "output_tokens", "tpot_ms", "ttft_ms", "within")
_OR_NONE = ("batch", "in_flight", "network_gb_per_s", "tpot_ms", "ttft_ms", "within")
_SPEEDS = {
    _NOT_SET: "best as predicted",
    0.1: "loses least within ±10%",
    "band": "loses least within the band",
}
_COSTS = {
    "linear": "linear (synthetic)",
    "linear, no loss": "linear, shared without loss",
    "Roofline": "Roofline, vLLM",
    "Roofline, eager": "Roofline, vLLM 0.2 (eager)",
    "Roofline, llama.cpp": "Roofline, llama.cpp",
}
_MOST_GPUS_OF_A_TYPE = 16  # unless it begins with more
_MOST_IN_FLIGHT = 32  # unless it begins with more, or a placement needs more
_SIMPLE_PRESET = 3  # controls


class MixControls(traitlets.HasTraits):
    """Sliders and menus whose values are a `Mix`.

    Parameters
    ----------
    mix : Mix
        The state to begin with.
    simple : bool
        Whether the panel begins with three controls.
    note : Widget, optional
        Shown below the controls.

    Attributes
    ----------
    mix : Mix
        What the controls say; observe it to follow them.
    fields : dict of str to Widget
        The control of every field of the mix but `counts`; 0 stands for None.
    counts : dict of str to IntSlider
        The slider of every GPU type.
    more : Dropdown
        Adds the slider of another GPU type.
    panel : ControlPanel
    """

    mix = traitlets.Any()

    def __init__(self, mix: Mix, simple: bool = False, note: widgets.Widget | None = None) -> None:
        super().__init__()
        self._showing = False
        # A cost model that was given stays among the choices when another one is chosen.
        self._given = [("your own", mix.costs)] if isinstance(mix.costs, CostModel) else []
        self.fields: dict[str, Any] = {
            "source": menu("model or case", options=sources(), value=mix.source),
            "costs": menu("cost model", options=self._costs(mix)),
            "phase": menu("phase", options=["prefill", "decode", "mixed"]),
            "in_flight": integer("in flight (0: chosen)", _NOT_SET, _MOST_IN_FLIGHT),
            "gpus_per_stage": integer("GPUs per stage, up to", 1, 8),
            "batch_split": menu(
                "batch is split", options=[("equally", "even"), ("by speed", "balanced")]
            ),
            "runs_on": menu("runs on", options=[("any plan", None), *((e, e) for e in engines())]),
            "within": menu("plan"),
        }
        for name, choices in _NUMBERS.items():
            self.fields[name] = choice(choices.label, _numbers(name, mix))
        self.counts: dict[str, widgets.IntSlider] = {}
        self.more = menu("add a GPU type")
        self._gpus = widgets.VBox(layout={"margin": "0"})
        groups = {label: [self.fields[name] for name in names] for label, names in _GROUPS.items()}
        self.panel = ControlPanel({"Cluster": [self._gpus], **groups}, [], simple, note)
        self.show(mix)
        for name, control in self.fields.items():
            control.observe(self._other_source if name == "source" else self._changed, "value")
        self.more.observe(self._other_type, "value")

    def _costs(self, mix: Mix) -> list[tuple[str, str | CostModel]]:
        """Return the cost models to choose from, each with its label."""
        return [*self._given, *((_COSTS[name], name) for name in cost_models(mix.source))]

    def _said(self) -> Mix:
        """Read the mix off the controls."""
        values = {name: control.value for name, control in self.fields.items()}
        for name in _OR_NONE:
            values[name] = None if self.fields[name].disabled else values[name] or None
        counts = tuple((gpu_type, slider.value) for gpu_type, slider in self.counts.items())
        return Mix(counts=counts, **values)

    def show(self, mix: Mix) -> None:
        """Set every control to a mix."""
        self._showing = True
        self.fields["source"].value = mix.source
        self._show_counts(dict(mix.counts))
        self.fields["costs"].options = self._costs(mix)
        for name in _NUMBERS:
            self.fields[name].options = _numbers(name, mix)
        speeds = {mix.within or _NOT_SET: f"loses least within ±{mix.within}"} | _SPEEDS
        self.fields["within"].options = [(words, value) for value, words in speeds.items()]
        for name in ("in_flight", "gpus_per_stage"):
            self.fields[name].max = max(self.fields[name].max, getattr(mix, name) or 0)
        for name, control in self.fields.items():
            value = getattr(mix, name)
            control.value = _NOT_SET if value is None and name in _OR_NONE else value
        self._enable_limits()
        self.fields["gpus_per_node"].disabled = mix.is_case  # a case keeps its own nodes
        self._showing = False
        self.mix = mix

    def _enable_limits(self) -> None:
        """Disable the limits that a phase has not: prompts have no time per output token, answers none to the first.

        And the plan that loses least, which is not sought within limits or an engine's rules.
        """
        without = {"tpot_ms": "prefill", "ttft_ms": "decode", "output_tokens": "prefill"}
        for name, phase in without.items():
            self.fields[name].disabled = self.fields["phase"].value == phase
        limits = [self.fields[name] for name in _GROUPS["Limits for requests"]]
        ruled = any(limit.value and not limit.disabled for limit in limits)
        self.fields["within"].disabled = ruled or self.fields["runs_on"].value is not None

    def hide_serving(self, hidden: bool) -> None:
        """Hide what only serving has: training has microbatches of its own."""
        for name in _SERVING_ALONE:
            self.fields[name].layout.display = "none" if hidden else None

    def reach(self, in_flight: int) -> None:
        """Let "batches in flight" go to twice what a placement needs."""
        slider = self.fields["in_flight"]
        if in_flight > slider.max:
            slider.max = 2 * in_flight

    def _show_counts(self, counts: Mapping[str, int]) -> None:
        for slider in self.counts.values():
            slider.unobserve_all("value")
        self.counts = {
            gpu_type: integer(gpu_type, 0, max(_MOST_GPUS_OF_A_TYPE, count), value=count)
            for gpu_type, count in counts.items()
        }
        for slider in self.counts.values():
            slider.observe(self._changed, "value")
        left = [name for name in types_of(self.fields["source"].value) if name not in counts]
        self.more.options = [("choose …", "")] + [(name, name) for name in left]
        self.more.value = ""
        self._gpus.children = (*self.counts.values(), *([self.more] if left else []))
        others = self.fields["gpus_per_stage"], self.fields["network_gb_per_s"]
        self.panel.choose([*self.counts.values(), *others][:_SIMPLE_PRESET])

    def _other_source(self, change: Mapping[str, Any]) -> None:
        """Show a case or model; its GPUs and its workload come with it."""
        if self._showing:
            return
        new = beginning(change["new"])
        # From model to model the mix of GPUs, the workload and the cost model stay as they are.
        stays = not (new.is_case or self.mix.is_case)
        self.show(replace(self.mix, source=new.source) if stays else new)

    def _other_type(self, change: Mapping[str, Any]) -> None:
        if not self._showing and change["new"]:
            self._show_counts({**dict(self.mix.counts), change["new"]: 1})
            self.mix = self._said()

    def _changed(self, _change: Any) -> None:
        if not self._showing:
            self._enable_limits()
            self.mix = self._said()


def _numbers(name: str, mix: Mix) -> list[tuple[str, float]]:
    """Return the values of a slider, each with its label; that of the mix is among them."""
    _, numbers, text, words = _NUMBERS[name]
    offered = {*numbers, getattr(mix, name) or _NOT_SET}
    if name == "network_gb_per_s" and mix.is_case:
        offered.add(_NOT_SET)
    return [(words.get(number, text.format(number)), number) for number in sorted(offered)]
