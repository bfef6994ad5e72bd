"""The controls of the mix explorer: values in, values out; they do not depend on what is drawn."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from pipelab.widgets.explorer_parts import ControlPanel, choice, integer, menu
from pipelab.widgets.mix_values import Mix, beginning, cost_models, engines, sources, types_of

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512)
_CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_NETWORKS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 12.5, 25.0, 50.0, 100.0, 200.0, 400.0)
_ANSWERS = (16, 32, 64, 128, 200, 256, 512, 1024, 2048)
_TPOT_MS = (5, 7.5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000)
_TTFT_MS = (50, 100, 200, 500, 1000, 2000, 3000, 5000, 10_000, 20_000)
_NODE_SIZES = (1, 2, 4, 8)
_SPLITS = (("equally", "even"), ("by speed", "balanced"))
_COSTS = {
    "linear": "linear (synthetic)",
    "linear, no loss": "linear, shared without loss",
    "Roofline": "Roofline, vLLM",
    "Roofline, eager": "Roofline, vLLM 0.2 (eager)",
    "Roofline, llama.cpp": "Roofline, llama.cpp",
}
_AS_GIVEN = 0.0  # a slider takes None for nothing chosen
_NO_LIMIT = 0.0
_MOST = 16  # GPUs of a type, unless it begins with more
_CHOSEN = 0  # batch, in flight: chosen with the placement
_MOST_IN_FLIGHT = 32  # unless it begins with more, or a placement needs more
_FEW = 3  # controls of the simple preset
# Fields of a mix whose controls have the same values.
_AS_SHOWN = (
    "phase",
    "context",
    "output_tokens",
    "gpus_per_node",
    "gpus_per_stage",
    "batch_split",
    "costs",
    "runs_on",
)


class MixControls:
    """Sliders and menus whose values are a `Mix`.

    Parameters
    ----------
    mix : Mix
        The state to begin with.
    changed : function without arguments
        Called when the reader has changed anything.
    simple : bool
        Whether the panel begins with three controls.
    note : Widget, optional
        Shown below the controls.
    """

    def __init__(
        self,
        mix: Mix,
        changed: Callable[[], None],
        simple: bool = False,
        note: widgets.Widget | None = None,
    ) -> None:
        self._changed, self._quiet = changed, False
        self.source = menu("model or case", options=sources(), value=mix.source)
        self.costs = menu("cost model", options=_costs(mix))
        self.more = menu("add a GPU type")
        self.phase = menu("phase", options=["prefill", "decode", "mixed"])
        self.batch_split = menu("batch is split", options=_SPLITS)
        self.batch = choice("batch (sequences)", _batches(mix))
        self.context = choice("context (tokens)", _CONTEXTS)
        self.output_tokens = choice("answer (tokens)", _ANSWERS)
        self.tpot_ms = choice("TPOT, at most", _limits(_TPOT_MS, mix.tpot_ms))
        self.ttft_ms = choice("TTFT, at most", _limits(_TTFT_MS, mix.ttft_ms))
        self.network = choice("network, any to any", _networks(mix))
        self.gpus_per_node = choice("nodes of … GPUs", _nodes(mix))
        self.in_flight = integer("in flight (0: chosen)", _CHOSEN, _MOST_IN_FLIGHT)
        self.gpus_per_stage = integer("GPUs per stage, up to", 1, 8)
        self.runs_on = menu("runs on", options=[("any plan", None), *((e, e) for e in engines())])
        self.counts: dict[str, widgets.IntSlider] = {}
        self._gpus = widgets.VBox(layout={"margin": "0"})
        workload = [self.phase, self.batch, self.context, self.output_tokens, self.in_flight]
        limits = [self.tpot_ms, self.ttft_ms]
        stages = [self.network, self.gpus_per_node, self.gpus_per_stage, self.batch_split]
        stages.append(self.runs_on)
        groups = {
            "Cluster": [self._gpus],
            "Model and workload": [self.source, self.costs, *workload],
            "Limits for requests": limits,
            "Network and stages": stages,
        }
        self.panel = ControlPanel(groups, [], simple, note)
        self.show(mix)
        self.phase.observe(lambda _change: self._enable_limits(), "value")
        for control in (self.costs, *workload, *limits, *stages):
            control.observe(self._report, "value")
        self.source.observe(self._other_source, "value")
        self.more.observe(self._other_type, "value")

    @property
    def mix(self) -> Mix:
        """What the controls say."""
        return self._mix_of(self.source.value)

    def _mix_of(self, source: str) -> Mix:
        counts = tuple((t, slider.value) for t, slider in self.counts.items())
        values: dict[str, Any] = {name: getattr(self, name).value for name in _AS_SHOWN}
        values["batch"] = self.batch.value or None
        values["in_flight"] = self.in_flight.value or None
        values["network_gb_per_s"] = self.network.value or None
        for name in ("tpot_ms", "ttft_ms"):
            limit = getattr(self, name)
            values[name] = None if limit.disabled else limit.value or None
        return Mix(source, counts, **values)

    def show(self, mix: Mix) -> None:
        """Set every control to a mix, without calling `changed`."""
        with self._silence():
            self.source.value = mix.source
            self._show_counts(dict(mix.counts))
            self.costs.options = _costs(mix)
            self.network.options = _networks(mix)
            self.batch.options = _batches(mix)
            self.context.options = sorted({*_CONTEXTS, mix.context})
            self.output_tokens.options = sorted({*_ANSWERS, mix.output_tokens})
            self.tpot_ms.options = _limits(_TPOT_MS, mix.tpot_ms)
            self.ttft_ms.options = _limits(_TTFT_MS, mix.ttft_ms)
            self.gpus_per_node.options = _nodes(mix)
            for name in ("in_flight", "gpus_per_stage"):
                slider = getattr(self, name)
                slider.max = max(slider.max, getattr(mix, name) or 0)
            for name in _AS_SHOWN:
                getattr(self, name).value = getattr(mix, name)
            self.batch.value = mix.batch or _CHOSEN
            self.in_flight.value = mix.in_flight or _CHOSEN
            self.network.value = mix.network_gb_per_s or _AS_GIVEN
            self.tpot_ms.value = mix.tpot_ms or _NO_LIMIT
            self.ttft_ms.value = mix.ttft_ms or _NO_LIMIT
            self._enable_limits()
            self.gpus_per_node.disabled = mix.is_case  # a case keeps its own nodes

    def _enable_limits(self) -> None:
        """Prompts alone have no time per output token, and answers alone none to the first."""
        phase = self.phase.value
        self.tpot_ms.disabled, self.ttft_ms.disabled = phase == "prefill", phase == "decode"
        self.output_tokens.disabled = phase == "prefill"

    def hide_serving(self, hidden: bool) -> None:
        """Hide what only serving has: training has microbatches of its own."""
        limits = self.output_tokens, self.tpot_ms, self.ttft_ms
        for control in (self.phase, self.batch, self.in_flight, *limits):
            control.layout.display = "none" if hidden else None

    def reach(self, in_flight: int) -> None:
        """Let "batches in flight" go to twice what a placement needs."""
        if in_flight > self.in_flight.max:
            self.in_flight.max = 2 * in_flight

    def _show_counts(self, counts: dict[str, int]) -> None:
        for slider in self.counts.values():
            slider.unobserve_all("value")
        self.counts = {t: integer(t, 0, max(_MOST, n), value=n) for t, n in counts.items()}
        for slider in self.counts.values():
            slider.observe(self._report, "value")
        left = [t for t in types_of(self.source.value) if t not in counts]
        self.more.options = [("choose …", "")] + [(t, t) for t in left]
        self.more.value = ""
        self._gpus.children = (*self.counts.values(), *([self.more] if left else []))
        few = [*self.counts.values(), self.gpus_per_stage, self.network]
        self.panel.choose(few[:_FEW])

    def _other_source(self, change: Mapping[str, Any]) -> None:
        """A case or model of its own: its GPUs and its workload come with it."""
        if self._quiet:
            return
        new, old = beginning(change["new"]), self._mix_of(change["old"])
        # From model to model the mix of GPUs, the workload and the cost model stay as they are.
        self.show(new if new.is_case or old.is_case else replace(old, source=new.source))
        self._changed()

    def _other_type(self, change: Mapping[str, Any]) -> None:
        if self._quiet or not change["new"]:
            return
        with self._silence():
            self._show_counts({t: s.value for t, s in self.counts.items()} | {change["new"]: 1})
        self._changed()

    def _report(self, _change: Any) -> None:
        if not self._quiet:
            self._changed()

    @contextmanager
    def _silence(self) -> Any:
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before


def _costs(mix: Mix) -> list[tuple[str, str]]:
    """Return the cost models to choose from, each with its label."""
    return [(_COSTS[name], name) for name in cost_models(mix.source)]


def _batches(mix: Mix) -> list[tuple[str, int]]:
    """Return the batch sizes to choose from; "chosen" comes first."""
    sizes = sorted({*_BATCHES, *([] if mix.batch is None else [mix.batch])})
    return [("chosen", _CHOSEN)] + [(str(size), size) for size in sizes]


def _limits(known: Iterable[float], own: float | None) -> list[tuple[str, float]]:
    """Return the limits to choose from, in ms; none comes first."""
    numbers = sorted({*known, *([] if own is None else [own])})
    return [("no limit", _NO_LIMIT)] + [(f"{ms:,.7g} ms", ms) for ms in numbers]


def _networks(mix: Mix) -> list[tuple[str, float]]:
    """Return the bandwidths to choose from, in GB/s; a case's own links come first."""
    own = [] if mix.network_gb_per_s is None else [mix.network_gb_per_s]
    numbers = [(f"{x:g} GB/s", x) for x in sorted({*_NETWORKS, *own})]
    return ([("the case's", _AS_GIVEN)] if mix.is_case else []) + numbers


def _nodes(mix: Mix) -> list[tuple[str, int]]:
    """Return the sizes of nodes to choose from."""
    sizes = sorted({*_NODE_SIZES, mix.gpus_per_node})
    return [("no nodes" if size == 1 else str(size), size) for size in sizes]
