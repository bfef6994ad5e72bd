"""The reader's own plan in the mix explorer: move stage boundaries, return to the optimum."""

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from pipelab.engine.scoring import Score
from pipelab.errors import PipelabError
from pipelab.fields import given
from pipelab.figures.methods_against_optimum import Row
from pipelab.widgets.explorer_parts import COLUMNS, RELEASED, Words, integer
from pipelab.widgets.mix_answers import Answer, own_plan, stage_gpus
from pipelab.widgets.mix_sentences import parse_layers


class OwnPlan:
    """Controls for boundaries; `score` is the plan's score, None while it is the optimum.

    Parameters
    ----------
    changed : function without arguments
        Called when the plan has changed.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed, self._quiet = changed, False
        self.found: Answer | None = None
        self.score: Score | None = None
        self.layers = widgets.Text(description="layers of each stage", **RELEASED)
        self.boundary = integer("boundary after stage", 1, 1)
        self.where = integer("lies after layer", 1, 1)
        self.back = widgets.Button(description="back to the optimum", layout={"width": "170px"})
        self.why = Words()
        head = widgets.HTML(
            "<b>Your own plan</b>: move a stage boundary, or type the layers of each stage. "
            "Further stages get one GPU each, unused GPUs first; 0 leaves out a stage's GPUs."
        )
        grid = widgets.GridBox([self.boundary, self.where], layout=COLUMNS)
        self.panel = widgets.VBox([head, self.layers, grid, self.back, self.why])
        self.layers.observe(self._typed, "value")
        self.boundary.observe(self._other_boundary, "value")
        self.where.observe(self._moved, "value")
        self.back.on_click(lambda _: self._return())

    def begin(self, found: Answer | None) -> None:
        """Start from the optimum of a new answer; None where the values contradict each other."""
        self.found, self.score = found, None
        placement = found.result.placement if found else None
        for control in (self.layers, self.boundary, self.where, self.back):
            control.disabled = placement is None
        self.why.value = ""
        self._show([len(stage.layers) for stage in placement.stages] if placement else [])

    def rows(self) -> list[Row]:
        """The plan as a row of the baselines' chart."""
        own = self.score
        return (
            [Row("your plan", own.throughput, own.outcome, "; ".join(own.reasons))] if own else []
        )

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
