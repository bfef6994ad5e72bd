"""The reader's own plan in the mix explorer: move stage boundaries, pin plans, return to the optimum."""

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from pipelab.engine.scoring import Score
from pipelab.errors import PipelabError
from pipelab.fields import given
from pipelab.figures.baselines import Row
from pipelab.widgets.mix_answer import Answer, own_plan, stage_gpus
from pipelab.widgets.mix_pins import Pinned
from pipelab.widgets.mix_sentences import compared, parse_layers
from pipelab.widgets.panel import COLUMNS, RELEASED
from pipelab.widgets.parts import Words


class OwnPlan:
    """Controls for boundaries and pins; `score` is the plan's score, None while it is the optimum.

    Parameters
    ----------
    changed : function without arguments
        Called when the plan or a pin has changed.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed, self._quiet = changed, False
        self.found: Answer | None = None
        self.score: Score | None = None
        self.pinned: dict[str, Pinned] = {}
        self.layers = widgets.Text(description="layers of each stage", **RELEASED)
        self.boundary = widgets.IntSlider(
            min=1, max=1, description="boundary after stage", **RELEASED
        )
        self.where = widgets.IntSlider(min=1, max=1, description="lies after layer", **RELEASED)
        self.back = widgets.Button(description="back to the optimum", layout={"width": "170px"})
        self.pins = {
            name: widgets.Button(description=f"pin as {name}") for name in ("plan A", "plan B")
        }
        self.unpin = widgets.Button(description="unpin both")
        self.table, self.why = widgets.HTML(), Words()
        buttons = [self.back, *self.pins.values(), self.unpin]
        self.panel = widgets.VBox(
            [
                widgets.HTML(
                    "<b>Your own plan</b>: move a stage boundary, or type the layers of each stage. Further stages "
                    "get one GPU each, unused GPUs first; 0 leaves out a stage's GPUs."
                ),
                widgets.GridBox([self.layers, self.boundary, self.where], layout=COLUMNS),
                widgets.Box(buttons, layout={"flex_flow": "row wrap"}),
                self.why,
            ]
        )
        self.layers.observe(self._typed, "value")
        self.boundary.observe(self._other_boundary, "value")
        self.where.observe(self._moved, "value")
        self.back.on_click(lambda _: self._return())
        for name, button in self.pins.items():
            button.on_click(lambda _, name=name: self._pin(name))
        self.unpin.on_click(lambda _: self._clear_pins())

    def begin(self, found: Answer) -> None:
        """Start from the optimum of a new answer; pins stay."""
        self.found, self.score = found, None
        placement = found.result.placement
        for control in (self.layers, self.boundary, self.where, self.back, *self.pins.values()):
            control.disabled = placement is None
        self.why.value = ""
        self.table.value = compared(self.pinned, found) if self.pinned else ""
        self._show([len(stage.layers) for stage in placement.stages] if placement else [])

    def forget(self) -> None:
        """The values contradict each other: there is no problem."""
        self.found = self.score = None
        for control in (self.layers, self.boundary, self.where, self.back, *self.pins.values()):
            control.disabled = True
        self.table.value = compared(self.pinned) if self.pinned else ""

    def baselines(self) -> list[Row]:
        """The plan and the pinned ones, under the present values, as rows of the baselines' chart."""
        own = self.score
        rows = (
            [Row("your plan", own.throughput, own.outcome, "; ".join(own.reasons))] if own else []
        )
        return rows + [
            plan.today(given(self.found)).row(name) for name, plan in self.pinned.items()
        ]

    def _show(self, layers: list[int], text: str | None = None) -> None:
        """Set the controls to these numbers of layers, silently."""
        self._quiet = True
        self.layers.value = ",".join(map(str, layers)) if text is None else text
        # An unused GPU follows the last stage: the boundary to it can be moved, too.
        spare = layers and layers[-1] and len(layers) < len(stage_gpus(given(self.found)))
        self._layers = [*layers, 0] if spare else layers
        stages = max(1, len(self._layers) - 1)
        self.boundary.value = min(self.boundary.value, stages)
        self.boundary.max = stages
        self.boundary.disabled = self.where.disabled = len(self._layers) < 2
        self._set_where()
        self._quiet = False

    def _set_where(self) -> None:
        """The slider of the boundary runs from the one before it to the one after it."""
        if len(self._layers) < 2:
            return
        at = self.boundary.value
        before, here = sum(self._layers[: at - 1]), sum(self._layers[:at])
        after = sum(self._layers[: at + 1])
        # Widen first: a slider refuses a least value above its greatest.
        self.where.min, self.where.max = 0, max(after, self.where.max)
        self.where.value = here
        self.where.max = max(after, 1)
        self.where.min = before

    def _other_boundary(self, _change: Any) -> None:
        if not self._quiet:
            self._quiet = True
            self._set_where()
            self._quiet = False

    def _moved(self, change: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        at, layers = self.boundary.value, list(self._layers)
        shift = change["new"] - sum(layers[:at])
        layers[at - 1] += shift
        layers[at] -= shift
        self._take(layers)

    def _typed(self, change: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        try:
            problem = given(self.found).problem
            layers = parse_layers(change["new"], len(problem.cluster), problem.model.layers)
        except PipelabError as error:
            self.why.explain(error)
            return
        self._take(list(layers), change["new"])

    def _take(self, layers: list[int], text: str | None = None) -> None:
        """Score a plan; the optimum's own numbers return to the optimum."""
        while layers and not layers[-1]:
            layers.pop()
        self.why.value = ""
        own = [len(stage.layers) for stage in given(given(self.found).result.placement).stages]
        self.score = None if layers == own else own_plan(given(self.found), tuple(layers))
        self._show(layers, text)
        self._changed()

    def _return(self) -> None:
        self.begin(given(self.found))
        self._changed()

    def _pin(self, name: str) -> None:
        found, own = given(self.found), self.score
        placement = own.placement if own else given(found.result.placement)
        self.pinned[name] = Pinned(found, placement, (own or found.result).throughput)
        self.pinned = dict(sorted(self.pinned.items()))
        self._show_pins()

    def _clear_pins(self) -> None:
        self.pinned = {}
        self._show_pins()

    def _show_pins(self) -> None:
        self.table.value = compared(self.pinned, self.found) if self.pinned else ""
        self._changed()
