"""Proven, not proven, stopped early, does not fit, refused: told apart everywhere, and everywhere in the same way."""

import contextlib
import dataclasses
import json
import re
import threading

import pytest

import oracle
import pipelab as pl
from pipelab.course.n01 import plot_splits
from pipelab.display import (
    DOES_NOT_FIT,
    NOT_PROVEN,
    OUTCOMES,
    PROVEN,
    REFUSED,
    STOPPED,
    outcome_of,
    outcome_of_row,
)
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.sweeps.workers import row_of
from pipelab.figures.classes import plot_classes
from pipelab.figures.placements import plot_placement
from pipelab.figures.progress import progress_parts
from pipelab.widgets.watch import WatchedSolve


def heavy(name, gb, **changes):
    case = pl.load_case(name, **changes)
    return oracle.heavier(case, gb)


@pytest.fixture(scope="module")
def five():
    """One comparison with each of the five outcomes; what joint has when it is stopped is worse than a rule's."""
    three = pl.Cluster.from_counts({"A100": 1, "V100": 2}, {"A100": 80, "V100": 32}, 400)
    problem = dataclasses.replace(heavy("small", 8.0), cluster=three)
    found = pl.compare(problem, joint={"time_limit": 0}, exhaustive={"limit": 100})
    slow = pl.Placement.of([(8, (0,)), (3, (1,)), (1, (2,))])
    joint = dataclasses.replace(
        found.results["joint"], placement=slow, throughput=pl.evaluate(problem, slow).throughput
    )
    return dataclasses.replace(found, results=found.results | {"joint": joint})


def test_every_method_ends_in_one_of_five_ways(five):
    assert {m: o.word for m, o in five.outcomes.items()} == {
        "even": "does not fit",
        "proportional": "not proven",
        "by_flops": "does not fit",
        "bandwidth_aware": "does not fit",
        "exhaustive": "refused",
        "single_gpu": "proven",
        "type_count": "not proven",
        "joint": "stopped early",
        "aggregated": "proven",
    }
    assert set(five.outcomes.values()) == set(OUTCOMES)
    for what in ("word", "symbol", "fill", "pattern", "marker", "ink"):
        assert len({getattr(outcome, what) for outcome in OUTCOMES}) == 5, what


def test_what_is_proven_for_one_gpu_per_stage_is_proven_and_says_for_what():
    tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    both = pl.compare(tiny, ["single_gpu", "exhaustive"])
    assert both.outcomes == {"single_gpu": PROVEN, "exhaustive": PROVEN}
    alone = both.results["single_gpu"]
    rows = pl.sweep(lambda k: tiny, [{"k": 2}], "single_gpu", jobs=1, progress=False)
    assert rows.to_frame()["proven_among"].to_list() == ["one GPU per stage"]
    assert "; ✓ proven for one GPU per stage: 1" in pl.plot(rows).layout.title.text
    for page in (alone, both, rows):
        assert f"{PROVEN.html} for one GPU per stage" in page._repr_html_()


def test_a_result_and_its_row_in_a_sweep_end_alike_and_only_a_proof_says_that_nothing_fits():
    """An "unknown" that nothing stopped proves nothing: not for more GPUs per stage, not of a heuristic."""
    tiny, medium, over = pl.load_case("tiny"), pl.load_case("medium"), threading.Event()
    over.set()
    crowd = dataclasses.replace(tiny, cluster=tiny.cluster.with_counts({"A100": 5}))
    pairs = heavy("tiny", 45.0, max_gpus_per_stage=2)  # one GPU per stage does not do
    for problem, method, options, outcome in (
        (pairs, "single_gpu", {}, NOT_PROVEN),
        (heavy("tiny", 90.0), "single_gpu", {}, DOES_NOT_FIT),
        (tiny, "single_gpu", {"time_limit": 0}, STOPPED),
        (tiny, "type_count", {}, NOT_PROVEN),
        (medium, "type_count", {}, NOT_PROVEN),  # finds nothing
        (tiny, "type_count", {"stop": over}, STOPPED),
        (heavy("tiny", 45.0), "even", {}, DOES_NOT_FIT),
        (crowd, "even", {}, REFUSED),  # more GPUs than layers
        (tiny, "even", {}, NOT_PROVEN),
        (tiny, "aggregated", {}, PROVEN),
        (heavy("tiny", 90.0), "aggregated", {}, DOES_NOT_FIT),
        (medium, "aggregated", {"stop": over}, STOPPED),
    ):
        result = pl.solve(problem, method, **options)
        row = vars(row_of(result))
        assert (outcome_of(result), outcome_of_row(row)) == (outcome, outcome), (method, options)
    first = pl.solve(pairs, "single_gpu")
    assert (first.status, first.stopped_by) == ("unknown", None)


def test_a_figure_draws_every_outcome_in_its_own_way():
    def looks(figure):
        bars = [trace for trace in figure.data if trace.type == "bar"]
        return {t.name: (t.marker.color, t.marker.pattern.shape or "") for t in bars}

    wanted = {str(o): (o.fill, o.pattern) for o in OUTCOMES}
    assert looks(pl.explore_mix("tiny").baselines) == wanted


def test_a_comparison_says_how_every_method_ended(five):
    told = five.to_frame().set_index("method")["outcome"].to_dict()
    assert told == {method: outcome.word for method, outcome in five.outcomes.items()}


def test_methods_that_were_not_asked_after_an_interrupt_were_stopped():
    whole = pl.compare(pl.load_case("tiny"), ["even"])
    cut = dataclasses.replace(whole, refused={"joint": "not asked, after an interrupt"})
    assert cut.outcomes == {"even": NOT_PROVEN, "joint": STOPPED}


def test_results_and_scores_show_their_outcome(five):
    assert all(outcome.html in five._repr_html_() for outcome in OUTCOMES)
    for result in five.results.values():
        assert outcome_of(result).html in result._repr_html_()
    problem, best = five.problem, five.results["aggregated"]
    for placement, outcome in (
        (best.placement, PROVEN),
        (five.results["proportional"].placement, NOT_PROVEN),
        (pl.Placement.of([(12, (0,))]), DOES_NOT_FIT),
        (pl.Placement.of([(1, (0,))]), REFUSED),  # layers are left out
    ):
        scored = pl.score(problem, placement, best)
        assert scored.outcome == outcome
        assert outcome.html in scored._repr_html_()


def test_points_of_a_sweep_look_as_they_ended():
    def make(gb, limit):
        return heavy("tiny", gb), {"time_limit": limit, "form": "tight"}

    points = pl.grid(gb=(20.0,), limit=(0, 30)) + pl.grid(gb=(500.0,), limit=(30,))
    answers = pl.sweep(make, points, "joint", jobs=1, progress=False)
    ended = [outcome_of_row(row) for row in answers.rows]
    assert ended == [STOPPED, PROVEN, DOES_NOT_FIT]
    figure = pl.plot(answers)
    assert set(figure.data[0].marker.symbol) == {PROVEN.marker, STOPPED.marker}
    assert "◇ stopped early: 1; ✗ does not fit: 1" in figure.layout.title.text
    assert [o.html in answers._repr_html_() for o in ended] == [True] * 3


ODD = "<b>x</b> & <script>y</script>"


def odd_problem():
    tiny = pl.load_case("tiny", link_units="tokens", max_gpus_per_stage=2)
    gpus = tuple(dataclasses.replace(gpu, type=f"<i>{gpu.type}</i>") for gpu in tiny.cluster.gpus)
    costs = {f"<i>{t}</i>": c for t, c in tiny.costs.coefficients.items()}
    cluster = dataclasses.replace(tiny.cluster, gpus=gpus)
    return dataclasses.replace(
        tiny, name=ODD, cluster=cluster, costs=pl.writeup.LinearThroughput(costs)
    )


@pytest.mark.slow
def test_no_name_is_taken_for_html_nor_two_prices_for_a_formula():
    problem = odd_problem()
    result, counted, both, front = (
        pl.solve(problem, "joint"), pl.solve(problem, "aggregated"), pl.compare(problem, ["even", "joint"]),
        pl.trade_off(problem),
    )  # fmt: skip
    watched = pl.watch_solve(problem)
    watched.result(60)
    watched.refresh()
    placed, rate = pl.timeline_of(problem, result), pl.solve(problem, objective="rate")
    figures = [
        watched.progress.figure, watched.chart.figure, plot_placement(problem, result.placement),
        plot_placement(problem),
        pl.plot(front), pl.plot(placed, kind="in_flight"), pl.plot(placed),
        plot_classes(problem.cluster),
        plot_splits(problem, {ODD: pl.splits.split_even(problem.model.layers, len(problem.cluster))}),
        pl.course.plot_lines([0], {ODD: [1]}, "", ("x", "y")),
    ]  # fmt: skip
    pages = [result, counted, both, placed, pl.score(problem, result), problem, problem.cluster, result.evaluation,
             front, pl.certificate(counted), rate]  # fmt: skip
    texts = [json.dumps(figure.to_plotly_json(), default=str) for figure in figures]
    for i, text in enumerate([*texts, *(page._repr_html_() for page in pages)]):
        for tag in ("<b>x</b>", "<script>y", "<i>A100", "<i>V100"):
            assert tag not in text, (i, tag)
    assert "&lt;b&gt;x&lt;/b&gt; &amp;" in watched.progress.layout.title.text
    for page in (result, counted, placed, rate):
        assert "<p class='tex2jax_ignore mathjax_ignore'>" in page._repr_html_()


def answers():
    """One answer of every kind that has a value and a bound."""
    tiny = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    trained = dataclasses.replace(tiny.workload, phase="training", microbatches=8)
    trained = dataclasses.replace(tiny, workload=trained)
    model, gpus = pl.Model("four", 4, 1000, 4000, 1.0), {"A": 1, "B": 2}
    priced = pl.Cluster.from_counts(gpus, 80, 100, usd_per_hour={"A": 1.8, "B": 0.6})
    several = pl.Problem(priced, model, pl.Workload(100, 1), pl.LayerTimes({"A": 1.0, "B": 3.0}))
    return {
        "rate": pl.solve(tiny),
        "program": pl.solve(tiny, "joint"),
        "latency": pl.solve(tiny, objective="latency"),
        "cost": pl.solve(several, objective="cost"),
        "step": pl.solve(trained, objective="step_time"),
        "deployment": pl.deploy(several),
        "load": pl.deploy(several, at_least=1000),
        "flow": pl.flow(several),
        "schedule": pl.best_schedule(pl.StageCosts(1, 1, 1), 4, 3),
        "trade-off": pl.trade_off(tiny, "seconds_per_pass"),
    }


ANSWERS = answers()


def with_(answer, value, bound):
    """The answer as it would be with this value and bound, known after no time at all."""
    if hasattr(answer, "points"):
        return dataclasses.replace(
            answer, points=tuple(with_(point, value, bound) for point in answer.points), seconds=0.0
        )
    status = "unknown" if value is None else "feasible"
    changed = {"status": status, "bound": bound, "seconds": 0.0, "stopped_by": "time limit"}
    if getattr(answer, "objective", None) is not None and not isinstance(answer.objective, str):
        goal = dataclasses.replace(answer.objective, value=value, bound=bound)
        changed |= {"objective": goal}
    names = {field.name for field in dataclasses.fields(answer)}
    changed |= dict.fromkeys({"value", "throughput"} & names, value)
    if value is None:
        changed |= dict.fromkeys({"placement", "timeline", "step"} & names)
        changed |= dict.fromkeys({"pipelines", "held", "ways"} & names, ())
    return dataclasses.replace(answer, **{k: v for k, v in changed.items() if k in names})


@pytest.mark.parametrize("bound", [None, 0.0, 1e-9, 50.0, float("inf")])
@pytest.mark.parametrize("value", [None, 0.0, 1e-9, 100.0])
@pytest.mark.parametrize("kind", ANSWERS)
def test_what_is_not_known_yet_zero_or_infinite_can_be_shown_everywhere(kind, value, bound):
    answer = with_(ANSWERS[kind], value, bound)
    if kind in ("trade-off", "schedule") and (value is None or bound == float("inf")):
        return  # of these there is always one
    repr(answer), answer.to_frame(), getattr(answer, "to_dict", dict)()
    said = [answer._repr_html_()]
    if kind != "trade-off":
        said += [answer.sentence, str(answer), str(outcome_of(answer))]
    if value is not None:
        given = [answer] if kind in ("trade-off", "schedule", "step") else [answer.problem, answer]
        with contextlib.suppress(pl.errors.PipelabError):  # in one line, which names the remedy
            drawn = pl.gantt(answer.timeline) if kind == "schedule" else pl.plot(*given)
            said.append(str(drawn.layout.title.text))
    with contextlib.suppress(pl.errors.PipelabError):
        said.append(str(pl.certificate(answer)))
    if kind in ("rate", "program"):
        moments = [
            Progress(seconds=0.0, incumbent=value, bound=bound, nodes=0, placement=answer.placement)
        ]
        watched = progress_parts(moments, 0.0, "now", WatchedSolve._gap(None, moments))
        said.append(str(watched))
    for text in said:
        assert not re.search(r"\binf\b|\bnan\b", text, re.I), text
