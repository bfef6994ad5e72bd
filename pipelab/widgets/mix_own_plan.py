"""The reader's own plan in the mix explorer: type the layers of each stage, return to the optimum."""

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets
import traitlets

from pipelab.errors import PipelabError
from pipelab.fields import given
from pipelab.widgets.explorer_parts import RELEASED, Words
from pipelab.widgets.mix_answers import MixAnswer, own_plan
from pipelab.widgets.mix_sentences import parse_layers


class OwnPlan(traitlets.HasTraits):
    """A field for the layers of each stage. Within limits on times there are no plans by hand.

    Attributes
    ----------
    score : Score or None
        Of the plan, None while it is the optimum; observe it to follow it.
    """

    score = traitlets.Any(None)

    def __init__(self) -> None:
        super().__init__()
        self._showing = False
        self._optimum: list[int] = []
        self.answer: MixAnswer | None = None
        self.layers = widgets.Text(description="layers of each stage", **RELEASED)
        self.back = widgets.Button(description="back to the optimum", layout={"width": "170px"})
        self.why = Words()
        head = widgets.HTML(
            "<b>Your own plan</b>: type the layers of each stage. "
            "Further stages get one GPU each, unused GPUs first; 0 leaves out a stage's GPUs."
        )
        self.panel = widgets.VBox([head, self.layers, self.back, self.why])
        self.layers.observe(self._typed, "value")
        self.back.on_click(lambda _button: self.begin(self.answer))

    def begin(self, answer: MixAnswer | None) -> None:
        """Start from the optimum of an answer; None where the values contradict each other."""
        self.answer = answer
        placement = answer.result.placement if answer else None
        self._optimum = [len(stage.layers) for stage in placement.stages] if placement else []
        within_limits = answer is not None and bool(answer.mix.limits)
        self.layers.disabled = self.back.disabled = placement is None or within_limits
        self._showing = True
        self.layers.value = ",".join(map(str, self._optimum))
        self._showing = False
        self.why.value = ""
        self.score = None

    def _typed(self, change: Mapping[str, Any]) -> None:
        """Score what is typed; the optimum's layers return to the optimum."""
        if self._showing:
            return
        problem = given(self.answer).problem
        try:
            layers = parse_layers(change["new"], len(problem.cluster), problem.model.layers)
        except PipelabError as error:
            self.why.explain(error)
            return
        self.why.value = ""
        stages = layers[: max(i for i, count in enumerate(layers, 1) if count)]
        mine = list(stages) != self._optimum
        self.score = own_plan(given(self.answer), stages) if mine else None
