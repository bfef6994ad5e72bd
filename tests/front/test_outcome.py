"""Proven, not proven, stopped early, does not fit, refused: told apart everywhere, and everywhere in the same way."""

import dataclasses
import json
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
from pipelab.engine.methods.joint import joint_size
from pipelab.engine.solvers import scip
from pipelab.engine.sweeps.workers import _answer
from pipelab.figures.classes import plot_classes
from pipelab.figures.growth import plot_growth, plot_run_times, plot_search_growth
from pipelab.figures.makespans import plot_makespans
from pipelab.figures.methods_against_optimum import Row, baseline_parts
from pipelab.figures.placements import plot_placement
from pipelab.figures.progress import plot_progress
from pipelab.widgets.mix_answers import answer
from pipelab.widgets.mix_values import beginning


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


def test_the_five_share_neither_word_nor_symbol_nor_look():
    for what in ("word", "symbol", "fill", "pattern", "marker", "ink", "html"):
        assert len({getattr(outcome, what) for outcome in OUTCOMES}) == 5, what


@pytest.mark.slow
def test_what_is_proven_for_one_gpu_per_stage_is_proven_and_says_for_what(monkeypatch):
    tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    both = pl.compare(tiny, ["single_gpu", "exhaustive"])
    assert both.results["single_gpu"].details["solver_status"] == "optimal"
    assert both.outcomes == {"single_gpu": PROVEN, "exhaustive": PROVEN}
    figure = pl.plot(both)
    solid = next(trace for trace in figure.data if trace.name == str(PROVEN))
    assert len(solid.y) == 2
    assert not solid.marker.pattern.shape
    assert figure.layout.yaxis.ticktext == ("single_gpu (one GPU per stage)", "exhaustive")
    alone = both.results["single_gpu"]
    for html in (alone._repr_html_(), both._repr_html_()):
        assert f"{PROVEN.html} for one GPU per stage" in html
    assert "✓ proven for one GPU per stage; " in plot_progress(alone).layout.title.text
    rows = pl.sweep(
        lambda k: pl.load_case("tiny", max_gpus_per_stage=k),
        [{"k": 2}],
        "single_gpu",
        jobs=1,
        progress=False,
    )
    assert [outcome_of_row(row) for row in rows.rows] == [PROVEN]
    assert rows.to_frame()["proven_among"].to_list() == ["one GPU per stage"]
    assert f"{PROVEN.html} for one GPU per stage" in rows._repr_html_()
    assert "; ✓ proven for one GPU per stage: 1" in pl.plot(rows).layout.title.text
    assert pl.plot(rows).data[0].text == ("k = 2, ✓ proven for one GPU per stage",)
    early = pl.solve(tiny, "single_gpu", time_limit=0)
    assert outcome_of(early) == STOPPED
    real = scip.run
    monkeypatch.setattr(
        scip, "run", lambda *a, **o: dataclasses.replace(real(*a, **o), stopped_by="time limit")
    )
    # at its bound when time ran out
    late = pl.solve(pl.load_case("tiny", max_gpus_per_stage=2), "single_gpu")
    assert (outcome_of(late), outcome_of_row(vars(_answer(late))), late.stopped_by) == (
        PROVEN,
        PROVEN,
        None,
    )
    monkeypatch.undo()
    as_run = pl.solve(pl.load_case("medium"), "single_gpu", segments="as_run")
    # the best of that run by SCIP's word
    assert (as_run.status, outcome_of(as_run)) == ("feasible", NOT_PROVEN)
    assert outcome_of_row(vars(_answer(as_run))) == NOT_PROVEN


def test_a_result_and_its_row_in_a_sweep_end_alike_and_only_a_proof_says_that_nothing_fits():
    """An "unknown" that nothing stopped proves nothing: not for more GPUs per stage, not of a heuristic."""
    tiny, over = pl.load_case("tiny"), threading.Event()
    over.set()
    crowd = dataclasses.replace(tiny, cluster=tiny.cluster.with_counts({"A100": 5}))
    results = {
        "one GPU per stage does not do": pl.solve(
            heavy("tiny", 45.0, max_gpus_per_stage=2), "single_gpu"
        ),
        "nothing fits": pl.solve(heavy("tiny", 90.0), "single_gpu"),
        "a heuristic's promise": pl.solve(tiny, "type_count"),
        "a heuristic that finds nothing": pl.solve(pl.load_case("medium"), "type_count"),
        "a heuristic that was stopped": pl.solve(tiny, "type_count", stop=over),
        "a rule's own placement": pl.solve(heavy("tiny", 45.0), "even"),
        "more GPUs than layers": pl.solve(crowd, "even"),
        "a rule": pl.solve(tiny, "even"),
        "an optimum": pl.solve(tiny, "aggregated"),
        "a proof that nothing fits": pl.solve(heavy("tiny", 90.0), "aggregated"),
        "a stopped search": pl.solve(pl.load_case("medium"), "aggregated", stop=over),
    }
    assert {what: outcome_of(result) for what, result in results.items()} == {
        "one GPU per stage does not do": NOT_PROVEN,
        "nothing fits": DOES_NOT_FIT,
        "a heuristic's promise": NOT_PROVEN,
        "a heuristic that finds nothing": NOT_PROVEN,
        "a heuristic that was stopped": STOPPED,
        "a rule's own placement": DOES_NOT_FIT,
        "more GPUs than layers": REFUSED,
        "a rule": NOT_PROVEN,
        "an optimum": PROVEN,
        "a proof that nothing fits": DOES_NOT_FIT,
        "a stopped search": STOPPED,
    }
    assert {what: outcome_of_row(vars(_answer(result))) for what, result in results.items()} == {
        what: outcome_of(result) for what, result in results.items()
    }
    first = results["one GPU per stage does not do"]
    assert (first.status, first.stopped_by) == ("unknown", None)


def looks(figure):
    """How each outcome is drawn in a figure: fill and pattern by the name of its bars."""
    return {
        t.name: (t.marker.color, t.marker.pattern.shape or "")
        for t in figure.data
        if t.type == "bar"
    }


def test_all_figures_draw_an_outcome_in_the_same_way(five):
    wanted = {str(o): (o.fill, o.pattern) for o in OUTCOMES}
    assert looks(pl.plot(five)) == wanted
    baselines = baseline_parts([Row(o.word, 1.0, o) for o in OUTCOMES], 1.0)
    assert {
        t["name"]: (t["marker"]["color"], t["marker"]["pattern"]["shape"])
        for t in baselines["data"][:5]
    } == wanted
    assert looks(pl.explore_mix("tiny").baselines) == wanted


def test_a_comparison_says_why_a_bar_is_missing_and_blames_no_time_out(five):
    figure = pl.plot(five)
    names, notes = figure.layout.yaxis.ticktext, figure.data[5]
    missing = {names[y]: text for y, text in zip(notes.y, notes.text, strict=True)}
    assert missing["even"].startswith("✗ does not fit: ")
    assert missing["exhaustive"].startswith("⊘ refused: small has ")
    assert "proportional loses" in figure.layout.title.text
    assert five.to_frame().set_index("method")["outcome"].to_dict() == {
        m: o.word for m, o in five.outcomes.items()
    }
    html = five._repr_html_()
    assert [o.symbol in html for o in OUTCOMES] == [True] * 5


def test_methods_that_were_not_asked_after_an_interrupt_were_stopped():
    whole = pl.compare(pl.load_case("tiny"), ["even"])
    cut = dataclasses.replace(
        whole, refused={"joint": "not asked, after an interrupt", "exhaustive": "too large"}
    )
    assert cut.outcomes == {"even": NOT_PROVEN, "joint": STOPPED, "exhaustive": REFUSED}


def test_results_and_scores_show_their_outcome(five):
    for result in five.results.values():
        assert outcome_of(result).html in result._repr_html_()
    problem, best = five.problem, five.results["aggregated"]
    placed = five.results["proportional"].placement
    for placement, outcome in (
        (best.placement, PROVEN),
        (placed, NOT_PROVEN),
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


def test_saved_run_times_do_not_count_a_time_out_as_solved():
    pd = pytest.importorskip("pandas")
    rows = [
        ("s", 1, 0, 2.0, "optimal", 9),
        ("s", 2, 0, 3.0, "infeasible", 9),
        ("s", 2, 1, 60.0, "feasible", 9),
    ]
    frame = pd.DataFrame(
        rows, columns=["series", "value", "seed", "seconds", "status", "variables"]
    )
    figure = plot_run_times(frame, ["s"])
    assert figure.layout.title.text.startswith(
        "3 problems, the slowest solved in 3 s, 1 stopped early after 60 s (open diamonds)<br>"
    )
    symbols = {trace.marker.symbol: list(trace.y) for trace in figure.data if trace.marker.symbol}
    assert symbols == {PROVEN.marker: [2.0, 3.0], STOPPED.marker: [60.0]}


# names are shown letter by letter

ODD = "<b>x</b> & <script>y</script>"


def odd_problem():
    tiny = pl.load_case("tiny", link_units="tokens", max_gpus_per_stage=2)
    gpus = tuple(dataclasses.replace(gpu, type=f"<i>{gpu.type}</i>") for gpu in tiny.cluster.gpus)
    costs = pl.writeup.LinearThroughput(
        {f"<i>{t}</i>": c for t, c in tiny.costs.coefficients.items()}
    )
    return dataclasses.replace(
        tiny, name=ODD, cluster=dataclasses.replace(tiny.cluster, gpus=gpus), costs=costs
    )


@pytest.mark.slow
def test_no_name_is_taken_for_html():
    problem = odd_problem()
    result = pl.solve(problem, "joint")
    counted = pl.solve(problem, "aggregated")
    watched = pl.watch_solve(problem)
    watched.result(60)
    watched.refresh()
    placed = pl.timeline_of(problem, result)
    both = pl.compare(problem, ["even", "joint"])
    figures = [
        watched.progress.figure, watched.chart.figure, plot_placement(problem, result.placement),
        plot_placement(problem), plot_progress(result), pl.plot(both),
        pl.plot(pl.trade_off(problem)), pl.plot(placed, kind="in_flight"), pl.plot(placed),
        plot_growth({ODD: joint_size(problem)}), plot_classes(problem.cluster),
        plot_search_growth([1], {ODD: [1]}, 1.0, "layers"),
        plot_splits(problem, {ODD: pl.splits.split_even(problem.model.layers, 2)}, [0, 1]),
        plot_makespans([0], {ODD: [1]}, "x"),
    ]  # fmt: skip
    for i, figure in enumerate(figures):
        text = json.dumps(
            figure.to_plotly_json() | {"layout": figure.layout.to_plotly_json()}, default=str
        )
        for tag in ("<b>x</b>", "<script>", "<i>A100", "<i>V100"):
            assert tag not in text, (i, tag)
    assert "&lt;b&gt;x&lt;/b&gt; &amp;" in watched.progress.layout.title.text
    pages = [result, counted, both, placed, pl.score(problem, result), problem, problem.cluster, result.evaluation,
             pl.trade_off(problem), pl.certificate(counted), pl.solve(problem, objective="rate")]  # fmt: skip
    for page in pages:
        html = page._repr_html_()
        assert "<b>x</b>" not in html
        assert "<i>" not in html
    # nor "$1 or $2" for a formula
    for page in (result, counted, placed, pl.solve(problem, objective="rate")):
        assert "<p class='tex2jax_ignore mathjax_ignore'>" in page._repr_html_()


def test_the_mix_explorer_shows_the_names_of_outcomes_not_of_statuses():
    found = answer(beginning("tiny"))
    assert [row.outcome for row in found.baselines] == [NOT_PROVEN] * 4
