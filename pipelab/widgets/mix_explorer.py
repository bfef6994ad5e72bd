"""The GPU mix explorer: change any control and see the best deployment, the best single pipeline, and its price."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import ipywidgets as widgets
import traitlets

from pipelab.engine.deployments.result import Deployment
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import PipelabError
from pipelab.fields import given
from pipelab.figures.deployments import deployment_parts
from pipelab.figures.methods_against_optimum import MethodRow, baseline_parts, row_of
from pipelab.figures.placements import placement_parts
from pipelab.widgets import mix_answers as answers
from pipelab.widgets import mix_sentences as words
from pipelab.widgets.background import Beside, outcome, running_loop
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.explorer_parts import RELEASED, Busy, CopyCode, Explorer, Words, shared
from pipelab.widgets.mix_controls import MixControls
from pipelab.widgets.mix_values import Mix, beginning, code_of

_FIRST_S = 0.2  # for a first answer; what is not proven by then is proven later
_LIMIT_S = 30.0  # for one optimum; without a proof by then, the best placement is shown
_BUDGET_PER_TYPE_S = 5.0  # for every type of which one more is tried
_IDLE_S = 0.6  # without a change before that begins
_SINGLE_PIPELINE_HEAD = "<b>The best single pipeline</b>, which the rest of this page is about"


class OwnPlan(widgets.VBox):
    """A field for the layers of each stage of the reader's own plan. Within limits on times there are no plans by hand.

    Attributes
    ----------
    score : Score or None
        Of the plan, None while it is the optimum; observe it to follow it.
    """

    score = traitlets.Any(None)

    def __init__(self) -> None:
        self._optimum: list[int] = []
        self.answer: answers.MixAnswer | None = None
        self.layers = widgets.Text(description="layers of each stage", **RELEASED)
        self.back = widgets.Button(description="back to the optimum", layout={"width": "170px"})
        self.why = Words()
        head = widgets.HTML(
            "<b>Your own plan</b>: type the layers of each stage. "
            "Further stages get one GPU each, unused GPUs first; 0 leaves out a stage's GPUs."
        )
        super().__init__([head, self.layers, self.back, self.why])
        self.layers.observe(self._typed, "value")
        self.back.on_click(lambda _button: self.begin(self.answer))

    def begin(self, answer: answers.MixAnswer | None) -> None:
        """Start from the optimum of an answer; None where the values contradict each other."""
        self.answer = answer
        placement = answer.result.placement if answer else None
        self._optimum = [len(stage.layers) for stage in placement.stages] if placement else []
        within_limits = answer is not None and bool(answer.mix.limits)
        self.layers.disabled = self.back.disabled = placement is None or within_limits
        self.layers.value = ",".join(map(str, self._optimum))
        self.why.value = ""
        self.score = None

    def _typed(self, change: Mapping[str, Any]) -> None:
        """Score what is typed; the optimum's layers return to the optimum."""
        if self.layers.disabled:
            return
        problem = given(self.answer).problem
        try:
            layers = words.parse_layers(change["new"], len(problem.cluster), problem.model.layers)
        except PipelabError as error:
            self.why.explain(error)
            return
        self.why.value = ""
        stages = layers[: max(i for i, count in enumerate(layers, 1) if count)]
        mine = list(stages) != self._optimum
        self.score = answers.own_plan(given(self.answer), stages) if mine else None


class MixExplorer(Explorer):
    """What `pl.explore_mix` returns; shows itself at the end of a cell.

    Attributes
    ----------
    state : MixState
        All that is known; observe it to follow the explorer.
    found : MixAnswer or None
        The best single pipeline with its problem; None where the values contradict each other.
    best : Deployment or None
        The best deployment known; None before the first. It follows the single pipeline.
    at_work : bool
        Whether it answers its controls.
    panel : ControlPanel
        Its checkbox `more` shows all controls or only three.
    answers : list of Widget
        What is shown below it: charts, words and code.
    """

    state = traitlets.Any()
    at_work = traitlets.Bool(True)

    def __init__(self, mix: Mix, simple: bool = False) -> None:
        self.busy = Busy()
        self.controls = MixControls(mix, simple, self.busy)
        self.panel, self.own = self.controls.panel, OwnPlan()
        self.panel.hide_with(self.own)
        self.refusal, self.text, self.code = Words(), Words(), CopyCode()
        state = answers.MixState(mix=mix)
        self.deployed = LiveChart(_deployment_chart(state))
        self.chart = LiveChart(placement_chart(state))
        self.baselines = LiveChart(_baselines_chart(state))
        self.answers = [
            self.refusal,
            self.deployed,
            widgets.HTML(_SINGLE_PIPELINE_HEAD),
            self.chart,
            self.text,
            self.own,
            self.baselines,
            self.code,
        ]
        self._beside = Beside(self.busy.show)
        super().__init__([self.panel, *self.answers, shared()], state=state)
        self.observe(self._draw, "state")
        self.own.observe(lambda change: self._learn({"plan": change["new"]}), "score")
        self.controls.observe(lambda _change: self._solve(), "mix")
        # at once, so that the page begins with an answer
        self._show(*outcome(self._first_answer(mix), threading.Event()))
        self.observe(lambda _change: self._solve(), "at_work")

    @property
    def found(self) -> answers.MixAnswer | None:
        """The best single pipeline."""
        return self.state.answer

    @property
    def best(self) -> Deployment | None:
        """The best deployment known."""
        known = self.state.deployment
        return known if isinstance(known, Deployment) else None

    def _solve(self) -> None:
        """Answer what the controls say, from what is kept or beside the kernel's loop."""
        mix = self.controls.mix
        known = answers.kept(mix)
        if self.at_work and known is None:
            self._beside.run(self._first_answer(mix), self._show)
            return
        self._beside.cancel()
        if self.at_work:
            self._show(known, None)

    def _first_answer(self, mix: Mix) -> Callable[[threading.Event], answers.MixAnswer]:
        """Return what solves a mix: in little time where the rest can follow."""
        before = self.state.answer
        batch = None if before is None else before.problem.workload.batch_size
        if running_loop() is None:
            return lambda stop: answers.solve_mix(mix, stop, _LIMIT_S, first_batch=batch)
        return lambda stop: answers.first_answer(mix, batch, stop, _FIRST_S)

    def _show(self, known: answers.MixAnswer | None, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, PipelabError):
            raise error
        self.state = answers.MixState(mix=self.controls.mix, answer=known, refusal=error)
        if known is not None:
            self._beside.later(self._look_further, self._learn, _IDLE_S)

    def _look_further(self, stop: threading.Event) -> Iterator[dict[str, Any]]:
        """Yield a deployment, proof and choice of equals, the best deployment, one GPU per stage, one more GPU.

        So long as no control changes.
        """
        known = given(self.found)
        mix, result = known.mix, known.result
        better = answers.deployments(known, stop, _LIMIT_S)
        yield {"deployment": (first := next(better, None))}
        if result.status not in answers.PROVEN_STATUSES or not result.details.get("fewest", True):
            batch = known.problem.workload.batch_size
            known = answers.solve_mix(mix, stop, _LIMIT_S, answers.CHOOSE_S, batch)
            yield {"answer": known, "deployment": answers.no_worse(first, known)}
        for best in better:
            yield {"deployment": answers.no_worse(best, known)}
        yield {"one_gpu_per_stage": answers.one_gpu_per_stage(mix, stop)}
        gains: dict[str, float | None] = {}
        for gpu_type, throughput in answers.one_more(mix, stop, _BUDGET_PER_TYPE_S):
            gains = {**gains, gpu_type: throughput}
            yield {"gains": gains}
        yield {"other_plans": answers.other_plans(known, stop, _BUDGET_PER_TYPE_S)}

    def _learn(self, news: Mapping[str, Any]) -> None:
        if "answer" not in news:
            self.state = replace(self.state, **news)
        elif self.state.plan is None:  # else the reader is at work on the first one
            self.state = answers.MixState(mix=self.state.mix, **news)

    def _draw(self, change: Mapping[str, Any]) -> None:
        """Draw what follows from the parts of the state that are new."""
        state, before = change["new"], change["old"]
        answered = state.differs(before, "answer", "refusal")
        if answered or state.differs(before, "deployment"):
            parts = _deployment_chart(state)
            if state.answer is not None and state.deployment is None:
                # as high as the last one, so that nothing below it moves while a slider does
                parts["layout"]["height"] = self.deployed.parts["layout"]["height"]
            self.deployed.put(parts)
        if answered or state.differs(before, "plan"):
            self.chart.put(placement_chart(state))
            self.code.code = code_of(state.mix, state.plan.placement if state.plan else None)
        if answered or state.differs(before, "plan", "gains", "other_plans"):
            self.text.say(*words.lines(state, dict(state.mix.counts)))
        if answered or state.differs(before, "plan", "one_gpu_per_stage"):
            self.baselines.put(_baselines_chart(state))
        if answered:
            self.refusal.value = ""
            if state.refusal is not None:
                self.refusal.explain(state.refusal)
            elif (evaluation := given(state.answer).result.evaluation) is not None:
                self.controls.reach(evaluation.in_flight_needed)
            self.own.begin(state.answer)


def placement_chart(state: answers.MixState) -> dict:
    """Return the chart of the placement: the optimum, or the reader's plan."""
    title = words.chart_title(state)
    if state.answer is None:
        return placement_parts(None, None, *title)
    if state.plan is None:
        return placement_parts(state.answer.problem, state.answer.result.placement, *title)
    plan = state.plan
    return placement_parts(plan.problem, plan.placement, *title, fits=plan.valid)


def _baselines_chart(state: answers.MixState) -> dict:
    """Return the chart of rules of thumb and the reader's plan against the optimum."""
    if state.answer is None:
        return baseline_parts([], None)
    best, plan = state.answer.nominal, state.plan
    proven = best.status == "optimal"
    rows = [row_of("proven optimum" if proven else "best found", best)]
    if state.answer.result is not best:
        rows.append(row_of("loses least", state.answer.result))
    if plan is not None:
        rows.append(MethodRow("your plan", plan.throughput, plan.outcome, "; ".join(plan.reasons)))
    rows += [state.one_gpu_per_stage, *state.answer.baselines]
    return baseline_parts(rows, best.throughput if proven else None)


def _deployment_chart(state: answers.MixState) -> dict:
    """Return the chart of the best deployment; if that is one pipeline, it is the one drawn below."""
    best = state.deployment if isinstance(state.deployment, Deployment) else None
    if best is not None and best.count == 1:
        alone = given(state.answer).result
        same = math.isclose(best.throughput or 0, alone.throughput or 0, rel_tol=ONE_ANSWER)
        if same and alone.placement is not None:
            one = replace(best.pipelines[0], replicas=(alone.placement,))
            best = replace(best, pipelines=(one,))
    return deployment_parts(best, words.deployment_title(state.deployment, state.answer))


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
    it is said what prevents that. Without limits, a plan of one's own is scored by `pl.score`. The
    state can be copied as code.

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
        within (how far off speeds may be: the plan that loses least), tpot_ms and ttft_ms (limits in ms on the
        time per output token and to the first; None: no limit).
        For costs a case has "linear" and "linear, no loss" (`efficiency` 1), a model "Roofline"
        (vLLM), "Roofline, eager" (vLLM 0.2) and "Roofline, llama.cpp"; or give a cost model of your own.

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
