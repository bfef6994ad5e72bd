"""The reader's own plan in the mix explorer: move stage boundaries, return to the optimum."""

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets
import traitlets

from pipelab.errors import PipelabError
from pipelab.fields import given
from pipelab.widgets.explorer_parts import COLUMNS, RELEASED, Words, integer
from pipelab.widgets.mix_answers import MixAnswer, own_plan, stage_gpus
from pipelab.widgets.mix_sentences import parse_layers


class OwnPlan(traitlets.HasTraits):
    """Controls for the boundaries of stages.

    Attributes
    ----------
    score : Score or None
        Of the plan, None while it is the optimum; observe it to follow them.
    """

    score = traitlets.Any(None)

    def __init__(self) -> None:
        super().__init__()
        self._showing = False
        self._optimum: list[int] = []
        self._layers: list[int] = []
        self.answer: MixAnswer | None = None
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
        self.back.on_click(lambda _button: self.begin(self.answer))

    def begin(self, answer: MixAnswer | None) -> None:
        """Start from the optimum of an answer; None where the values contradict each other."""
        self.answer = answer
        placement = answer.result.placement if answer else None
        for control in (self.layers, self.boundary, self.where, self.back):
            control.disabled = placement is None
        self._optimum = [len(stage.layers) for stage in placement.stages] if placement else []
        self._take(self._optimum)

    def _take(self, layers: list[int], text: str | None = None) -> None:
        """Score a plan; the optimum's layers return to the optimum."""
        layers = layers[: max((i for i, count in enumerate(layers, 1) if count), default=0)]
        self.why.value = ""
        mine = layers != self._optimum
        plan = own_plan(given(self.answer), tuple(layers)) if mine else None
        self._show(layers, ",".join(map(str, layers)) if text is None else text)
        self.score = plan

    def _show(self, layers: list[int], text: str) -> None:
        """Set the controls to these numbers of layers."""
        self._showing = True
        self.layers.value = text
        # An unused GPU follows the last stage: the boundary to it can be moved, too.
        spare = layers and len(layers) < len(stage_gpus(given(self.answer)))
        self._layers = [*layers, 0] if spare else layers
        stages = max(1, len(self._layers) - 1)
        self.boundary.value = min(self.boundary.value, stages)
        self.boundary.max = stages
        self.boundary.disabled = self.where.disabled = len(self._layers) < 2
        self._set_where()
        self._showing = False

    def _set_where(self) -> None:
        """Let the slider of the boundary run from the one before it to the one after it."""
        if len(self._layers) < 2:
            return
        at = self.boundary.value
        before, here, after = (sum(self._layers[:end]) for end in (at - 1, at, at + 1))
        # Widen first: a slider refuses a least value above its greatest.
        self.where.min, self.where.max = 0, max(after, self.where.max)
        self.where.value = here
        self.where.max = max(after, 1)
        self.where.min = before

    def _other_boundary(self, _change: Any) -> None:
        if not self._showing:
            self._showing = True
            self._set_where()
            self._showing = False

    def _moved(self, change: Mapping[str, Any]) -> None:
        if self._showing:
            return
        at, layers = self.boundary.value, list(self._layers)
        shift = change["new"] - sum(layers[:at])
        layers[at - 1] += shift
        layers[at] -= shift
        self._take(layers)

    def _typed(self, change: Mapping[str, Any]) -> None:
        if self._showing:
            return
        problem = given(self.answer).problem
        try:
            layers = parse_layers(change["new"], len(problem.cluster), problem.model.layers)
        except PipelabError as error:
            self.why.explain(error)
            return
        self._take(list(layers), change["new"])
