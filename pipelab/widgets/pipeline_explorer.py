"""From placement to timeline: the controls of the mix explorer, and what its placement does, serving or training."""

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from pipelab.engine.timeline import PlacedTimeline, timeline_of
from pipelab.errors import PipelabError
from pipelab.fields import given
from pipelab.figures.in_flight import plot_in_flight
from pipelab.figures.placement_timelines import placed_gantt
from pipelab.figures.placements import placement_parts
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.explorer_parts import Explorer, Words, shared
from pipelab.widgets.mix_explorer import MixExplorer
from pipelab.widgets.mix_values import beginning
from pipelab.widgets.training_half import TrainingHalf


class PipelineExplorer(Explorer):
    """What `pl.explore_pipeline` returns; shows itself at the end of a cell.

    Attributes
    ----------
    mix : MixExplorer
        Whose controls and placement these are.
    placed : PlacedTimeline or None
        The pipeline that serves; None without a valid placement.
    training : TrainingHalf
        Its `found` is the best training step known.
    view : ToggleButtons
        What is shown below the controls: "place", "serve" or "train".
    """

    def __init__(self, mix: MixExplorer) -> None:
        self.mix = mix
        self.training = TrainingHalf(mix.controls)
        # one below the controls at a time, so that a control and its picture share a screen
        self.view = widgets.ToggleButtons(
            options=[("placement", "place"), ("serving", "serve"), ("training", "train")],
            value="serve",
        )
        self.placed: PlacedTimeline | None = None
        self.in_flight = widgets.IntSlider(
            min=0,
            max=64,
            description="in flight here (0: as placed)",
            style={"description_width": "200px"},
            layout={"width": "560px"},
            continuous_update=False,
        )
        mix.panel.hide_with(self.in_flight)
        self.words = Words()
        self._empty = placement_parts(None, None, "No pipeline without a placement")
        self.gantt, self.rate = LiveChart(self._empty), LiveChart(self._empty)
        mix.observe(self._followed, "state")
        self.in_flight.observe(lambda _change: self.redraw(), "value")
        serving = self.in_flight, self.words, self.gantt, mix.own, self.rate
        self._views = {"place": mix.answers, "serve": serving, "train": (self.training,)}
        super().__init__()
        self._arrange()
        self.redraw()
        self.view.observe(self._turned, "value")

    def _arrange(self) -> None:
        self.children = (self.view, self.mix.panel, *self._views[self.view.value], shared())

    def _turned(self, change: Mapping[str, Any]) -> None:
        self._arrange()
        if "train" in (change["old"], change["new"]):  # turns to training, or back to serving
            trains = change["new"] == "train"
            self.mix.controls.hide_serving(trains)
            self.mix.at_work = not trains
            self.training.at_work = trains

    def _followed(self, change: Mapping[str, Any]) -> None:
        if change["new"].differs(change["old"], "answer", "refusal", "plan"):
            self.redraw()

    def redraw(self) -> None:
        """Run the placement that the mix shows as a pipeline."""
        self.placed, self.words.value = None, ""
        placement, in_flight = self.mix.state.placement, self.in_flight.value or None
        try:
            if placement is not None:
                problem = given(self.mix.found).problem
                self.placed = timeline_of(problem, placement, in_flight=in_flight)
        except PipelabError as error:
            self.words.explain(error)
        if self.placed is None:
            self.gantt.put(self._empty)
            self.rate.put(self._empty)
            return
        if not self.placed.fits:
            self.words.say(f"Memory does not hold {self.placed.in_flight} in flight.")
        self.in_flight.max = max(self.in_flight.max, self.placed.in_flight_needed)
        self.gantt.put(placed_gantt(self.placed))
        self.rate.put(plot_in_flight(self.placed))


def explore_pipeline(
    source: str = "Llama-3-8B",
    counts: Mapping[str, int] | None = None,
    *,
    simple: bool = False,
    **values: Any,
) -> PipelineExplorer:
    """Show the pipeline of a mix explorer's placement over time, below its controls; buttons change what is shown.

    "placement" has the charts of `pl.explore_mix`. For "training", the placement whose step takes
    least is drawn: the schedule's Gantt chart and the memory of every GPU over time. What a moment
    finds comes first, the proof follows.

    Parameters
    ----------
    source : str
        As for `pl.explore_mix`.
    counts : mapping of GPU type to int, optional
        As for `pl.explore_mix`.
    simple : bool
        As for `pl.explore_mix`.
    **values
        As for `pl.explore_mix`.

    Returns
    -------
    PipelineExplorer
        A widget; `mix` has controls and placement, `placed` is the pipeline in the charts,
        `training.found` the training step.

    Raises
    ------
    UnknownName
        No such case, model, GPU type or control; the message names the nearest one.
    InvalidValue
        A value is outside its control's range.

    Examples
    --------
    >>> import pipelab as pl
    >>> both = pl.explore_pipeline("tiny")
    >>> both.mix.own.layers.value = "2,2"
    >>> [lane.name for lane in both.placed.lanes]
    ['stage 1', 'link 1→2', 'stage 2']
    """
    return PipelineExplorer(MixExplorer(beginning(source, counts, **values), simple))
