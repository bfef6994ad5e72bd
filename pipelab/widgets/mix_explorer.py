"""The GPU mix explorer: change any control and see the best deployment, the best single pipeline, and its price."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from pipelab.engine.deployments.result import Deployment
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import PipelabError
from pipelab.fields import given
from pipelab.figures.deployments import deployment_parts
from pipelab.figures.methods_against_optimum import Row, baseline_parts, row_of
from pipelab.figures.placements import placement_parts
from pipelab.placement import Placement
from pipelab.widgets import mix_sentences as words
from pipelab.widgets.background import Beside
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.explorer_parts import Busy, CopyCode, Explorer, Words, shared
from pipelab.widgets.mix_answers import (
    Answer,
    ServedScore,
    answer,
    deployments,
    expected_of,
    kept,
    one_gpu_per_stage,
    one_more,
    plan_within,
)
from pipelab.widgets.mix_controls import MixControls
from pipelab.widgets.mix_own_plan import OwnPlan
from pipelab.widgets.mix_values import Mix, beginning, code_of

if TYPE_CHECKING:
    import threading

_FIRST_S = 0.2  # for a first answer where the batch is chosen, too
_FIRST_WITHIN_S = 0.8  # where limits are kept, too
_LIMIT_S = 30.0  # for one optimum; without a proof by then, the best placement is shown
_BUDGET_S = 5.0  # for every type of which one more is tried
_IDLE_S = 0.6  # without a change before that begins
_ONE = "<b>The best single pipeline</b>, which the rest of this page is about"


class MixExplorer(Explorer):
    """What `pl.explore_mix` returns; shows itself at the end of a cell.

    Attributes
    ----------
    found : Answer or None
        The best single pipeline with its problem; None where the values contradict each other.
    best : Deployment or None
        The best deployment known; None before the first. It follows the single pipeline.
    panel : ControlPanel
        Its checkbox `more` shows all controls or only three.
    answers : list of Widget
        What is shown below it: charts, words and code.
    """

    def __init__(self, mix: Mix, simple: bool = False, *, at_work: bool = True) -> None:
        self._other: Callable[[], None] | None = None
        self.found: Answer | None = None
        self.best: Deployment | None = None
        self._listeners: list[Callable[[Answer | None], None]] = []
        self._gains: dict[str, float | None] = {}
        self._single: Row | None = None
        self._within = ""
        self.busy = Busy()
        self.controls = MixControls(mix, self._changed, simple, self.busy)
        self.panel = self.controls.panel
        self.own = OwnPlan(self._own_changed)
        self.panel.hide_with(self.own.panel)
        self.refusal, self.text, self.code = Words(), Words(), CopyCode()
        self.deployed = LiveChart(_deployed(None, None))
        self.chart = LiveChart(placement_parts(None, None, "No placement yet"))
        self.baselines = LiveChart(baseline_parts([], None))
        self._beside = Beside(self.busy.show)
        if at_work:
            self._draw_first(mix)
        self.answers = [
            self.refusal,
            self.deployed,
            widgets.HTML(_ONE),
            self.chart,
            self.text,
            self.own.panel,
            self.baselines,
            self.code,
        ]
        super().__init__([self.panel, *self.answers, shared()])

    @property
    def placement(self) -> Placement | None:
        """The placement drawn: the reader's own plan or the optimum; None if it is not valid."""
        if self.found is None or (self.own.score and not self.own.score.valid):
            return None
        return self.own.score.placement if self.own.score else self.found.result.placement

    def on_answer(self, listener: Callable[[Answer | None], None]) -> None:
        """Call this with every new answer or plan, and with None where there is no problem."""
        self._listeners.append(listener)

    def hand_over(self, other: Callable[[], None] | None) -> None:
        """Let `other` answer the controls; with None, answer them again."""
        self._other = other
        self._beside.cancel()
        self.busy.show(False)
        self._changed()

    def _draw_first(self, mix: Mix) -> None:
        try:
            self._show(answer(mix, time_limit=self._first_limit(mix)))
        except PipelabError as error:
            self._arrived(None, error)

    def _changed(self) -> None:
        if self._other is not None:
            self._other()
            return
        mix = self.controls.mix
        known = kept(mix)
        if known is not None:
            self._beside.cancel()
            self.busy.show(False)
            self._show(known)
        else:
            limit = self._first_limit(mix)
            self._beside.run(lambda stop: answer(mix, stop, limit), self._arrived)

    def _first_limit(self, mix: Mix) -> float:
        """Return the seconds for the first answer: few if the batch is chosen and the proof can follow."""
        if not self._beside.follows:
            return _LIMIT_S
        if mix.limits:
            return _FIRST_WITHIN_S
        return _FIRST_S if mix.batches else _LIMIT_S

    def _arrived(self, found: Answer | None, error: BaseException | None) -> None:
        if found is not None:
            self._show(found)
            return
        self.found = self.best = None
        self.deployed.put(_deployed(None, None))
        self.refusal.explain(given(error))
        self.text.value = ""
        self.code.code = code_of(self.controls.mix)
        self.chart.put(placement_parts(None, None, "These values contradict each other"))
        self.baselines.put(baseline_parts([], None))
        self.own.begin(None)
        self._notify()

    def _show(self, found: Answer) -> None:
        self._take(found)
        self._beside.later(self._looked_further, self._learned, _IDLE_S)

    def _take(self, found: Answer) -> None:
        self.found, self._gains, self._within = found, {}, ""
        self._single = Row("one GPU per stage", None, None, "being solved …")
        if found.result.evaluation is not None:
            self.controls.reach(found.result.evaluation.in_flight_needed)
        self.refusal.value = ""
        self.best = None
        waiting = _deployed(None, found)
        # as high as the last one, so that nothing below it moves while a slider does
        waiting["layout"]["height"] = self.deployed.parts["layout"]["height"]
        self.deployed.put(waiting)
        self.own.begin(found)
        self._draw()
        self._notify()

    def _looked_further(self, stop: "threading.Event") -> Iterator:
        """Yield the proof, deployments, one GPU per stage, one more GPU, while no control changes."""
        found = given(self.found)
        early = found.mix.batches or found.mix.limits
        if early and found.result.status in ("feasible", "unknown"):
            found = answer(found.mix, stop, _LIMIT_S)
            yield found
        yield from deployments(found, stop, _LIMIT_S)
        yield one_gpu_per_stage(found.mix, stop)
        yield from one_more(found.mix, stop, _BUDGET_S)
        yield from plan_within(found, stop, _BUDGET_S)

    def _learned(self, item: Any) -> None:
        if isinstance(item, Answer):
            if self.own.score is None:  # else the reader is at work on the first one
                self._take(item)
            return
        if isinstance(item, Deployment | PipelabError):
            self.best = item if isinstance(item, Deployment) else None
            self.deployed.put(_deployed(item, self.found))
            return
        if isinstance(item, Row):
            self._single = item
            self._draw_baselines()
            return
        if isinstance(item, str):
            self._within = item
        else:
            self._gains[item[0]] = item[1]
        self._say()

    def _own_changed(self) -> None:
        """The reader moved a boundary, or went back."""
        if self.found is not None:
            self._draw()
            self._notify()

    def _draw(self) -> None:
        found, own = given(self.found), self.own.score
        if own is None:
            parts = placement_parts(found.problem, found.result.placement, *words.headline(found))
        else:
            parts = placement_parts(
                own.problem, own.placement, *words.own_headline(own, found), fits=own.valid
            )
        self.chart.put(parts)
        self._say()
        self._draw_baselines()
        self.code.code = code_of(found.mix, own.placement if own else None)

    def _draw_baselines(self) -> None:
        found = given(self.found)
        best, proven = found.result, found.result.status == "optimal"
        first = row_of("proven optimum" if proven else "best found", best)
        rows = [first, *self.own.rows(), given(self._single), *found.baselines]
        self.baselines.put(baseline_parts(rows, best.throughput if proven else None))

    def _say(self) -> None:
        found, own = given(self.found), self.own.score
        result = found.result
        if own is not None and not own.valid:
            self.text.say(*own.reasons[:4])
            return
        if result.placement is None:
            said = result.status == "infeasible" and not found.mix.limits  # by the chart
            why = "" if said else result.reason
            gains = words.gains_line(result, self._gains, found.mix.known_types)
            self.text.say(why, gains)
            return
        shown = own or result
        placement, evaluation = shown.placement, given(shown.evaluation)
        expected = expected_of(found.problem, evaluation)
        service = own.service if isinstance(own, ServedScore) else found.service
        self.text.say(
            words.promise_line(found, service),
            words.costs_line(found.mix),
            words.batch_line(result),
            words.facts_line(shown.problem, given(placement), given(shown.throughput)),
            words.gains_line(result, self._gains, found.mix.known_types) if own is None else "",
            expected.sentence if expected else "",
            self._within if own is None else "",
        )

    def _notify(self) -> None:
        for listener in self._listeners:
            listener(self.found)


def _deployed(best: "Deployment | PipelabError | None", found: Answer | None) -> dict:
    """Return the chart of the best deployment; if that is one pipeline, it is the one drawn below."""
    shown = best if isinstance(best, Deployment) else None
    if shown is not None and found is not None and shown.count == 1:
        same = math.isclose(shown.throughput or 0, found.result.throughput or 0, rel_tol=ONE_ANSWER)
        if same and found.result.placement is not None:
            one = replace(shown.pipelines[0], replicas=(found.result.placement,))
            shown = replace(shown, pipelines=(one,))
    return deployment_parts(shown, words.deployment_title(best, found))


def explore_mix(
    source: str = "Llama-3-70B",
    counts: Mapping[str, int] | None = None,
    *,
    simple: bool = False,
    **values: Any,
) -> MixExplorer:
    """Mix GPUs by hand and see the best deployment, the best single pipeline and what limits it.

    Every change of a control is solved with `pl.solve(problem, "aggregated")` for the best single
    pipeline; the best deployment (`pl.deploy`) follows and is drawn above it, at first with how far
    it may be from the best. With a limit on a time, both serve requests and keep it (`pl.deploy`), or
    it is said what prevents that. Stage boundaries can be moved by hand and scored by `pl.score`, and
    the state copied as code.

    Parameters
    ----------
    source : str
        A bundled case (`pl.writeup.cases()`) or a model (`pl.hardware.models()`).
    counts : mapping of GPU type to int, optional
        By default a case's own GPUs, and a small mix for a model. For a case, the numbers that
        differ; for a model, the types that get sliders.
    simple : bool
        Begin with three controls: the first GPU types and, for fewer than three types, GPUs per
        stage and network. All others keep their values until "more controls" shows them.
    **values
        Initial values of the other controls: phase, batch (sequences), context and output_tokens
        (tokens), in_flight (None: chosen with the placement), network_gb_per_s (GB/s; None: a
        case's own links), gpus_per_node (1: no nodes), gpus_per_stage, batch_split, costs, runs_on (an engine),
        tpot_ms and ttft_ms (limits in ms on the time per output token and to the first; None: no limit).
        For costs a case has "linear" and "linear, no loss" (`efficiency` 1), a model "Roofline"
        (vLLM), "Roofline, eager" (vLLM 0.2), "Roofline, llama.cpp", and the linear ones
        for GPUs with coefficients in the write-up.

    Returns
    -------
    MixExplorer
        A widget; `found` is the present optimum with its problem.

    Raises
    ------
    UnknownName
        No such case, model, GPU type or control; the message names the nearest one.
    InvalidValue
        A value is outside its control's range.

    Examples
    --------
    >>> import pipelab as pl
    >>> mix = pl.explore_mix("tiny", gpus_per_stage=2)
    >>> round(mix.found.result.throughput, 3)
    301.784
    >>> mix.controls.counts["A100"].value = 0
    >>> mix.chart.layout.title.text.split("<br>")[0]
    'tiny, 2 GPUs: 193.1 tokens/s in 1 stage with 1 in flight, proven optimal'
    """
    return MixExplorer(beginning(source, counts, **values), simple)
