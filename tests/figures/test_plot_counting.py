"""The pictures of counting: what mixes hold, what bisection knows, what all GPUs cost."""

import pytest

import pipelab as pl
from pipelab import course
from pipelab.course.n06 import USED
from pipelab.figures.theme import NEUTRAL_LIGHT


def _bars(figure):
    return [tuple(trace.x) for trace in figure.data if trace.type == "bar"]


def test_a_mix_that_is_used_is_marked_and_counted():
    problem, most = course.one_network(2), {(0,): 18, (1,): 4, (1, 1): 8, (2, 2): 5}
    stages = [(0,), (0,), (0,), (1, 1), (1, 1), (2, 2), (2, 2)]
    figure = course.plot_mixes(problem, 6320.99, most, stages)
    assert (
        figure.layout.title.text
        == "At 6,321 tokens/s, 7 stages can hold 80 layers; the model has 80"
    )
    (bars,) = figure.data
    assert list(bars.y) == ["A100", "L4", "L4 + L4", "T4 + T4"]
    assert list(bars.x) == [18, 4, 8, 5]
    assert list(bars.text) == [
        "<b>18 × 3 stages</b>",
        "4",
        "<b>8 × 2 stages</b>",
        "<b>5 × 2 stages</b>",
    ]
    assert list(bars.marker.color) == [USED, NEUTRAL_LIGHT, USED, USED]
    none = course.plot_mixes(problem, 6400, most, None)
    assert "no choice of stages holds all 80 layers" in none.layout.title.text
    assert set(none.data[0].text) == {"18", "4", "8", "5"}


def test_bisection_shows_what_is_open_before_each_step():
    tried = {300: True, 500: False, 400: True}
    figure = course.plot_bisection([100, 200, 300, 400, 500, 600], tried)
    open_ = figure.data[0]
    assert list(zip(open_.base, open_.y, strict=True)) == [(0.5, 6), (3.5, 3), (3.5, 1)]
    marks = {trace.name: list(zip(trace.x, trace.y, strict=True)) for trace in figure.data[1:]}
    assert marks == {"reachable": [(1, 3), (3, 4)], "not reachable": [(2, 5)]}
    assert (
        figure.layout.title.text == "3 of 6 rates tried: 400 tokens/s is the highest reachable one"
    )
    title = course.plot_bisection([100, 200], {200: False, 100: False}).layout.title.text
    assert title == "2 of 2 rates tried: none is reachable"


@pytest.mark.parametrize(
    ("prices", "title"),
    [
        (
            [19, 4, 2],
            "At 7,000 tokens/s, just above the optimum, all GPUs cost 81 layers: prices",
        ),
        (
            [17, 4, 2.5],
            "At 7,000 tokens/s, just above the optimum, all GPUs cost 77 of 80 layers: 3",
        ),
    ],
)
def test_prices_stand_end_to_end_beside_all_layers(prices, title):
    figure = course.plot_prices(course.one_network(2), {6000: [18.5, 4, 2.5], 7000: prices}, 6000)
    assert figure.layout.title.text.startswith(title)
    assert list(figure.data[0].y) == ["<b>6,000</b>", "7,000"]
    last = [bar[-1] for bar in _bars(figure)]
    assert last == [n * u for n, u in zip((3, 4, 4), prices, strict=True)]
    (line,) = figure.layout.shapes
    assert line.x0 == 80
    notes = {note.text: note.x for note in figure.layout.annotations if note.y == "7,000"}
    assert f"<b>{sum(last):.4g}</b>" in notes
    assert notes[f"3 × {prices[0]}"] == last[0] / 2
    crossed = {note.text: note.x for note in figure.layout.annotations if "6,000" in str(note.y)}
    assert crossed["4 × 2.5"] == (71.5 + 80) / 2  # beside the line, on the longer side


def test_without_order_and_ends_all_layers_are_identical():
    problem = course.one_network(2, (2, 5, 1))
    assert problem.model.uniform
    assert problem.cluster.kind_count.tolist() == [2, 5, 1]
    assert problem.costs == course.three_sites().costs


FOLLOWS = {"A100": ["A100", "L4", "T4"], "L4": ["A100", "L4"], "T4": ["A100", "T4"]}


def test_a_pipeline_is_a_walk_through_states_that_enters_each_as_often_as_it_leaves():
    figure = course.plot_states(FOLLOWS, ["L4", "L4", "A100", "T4"])
    (circles,) = figure.data
    assert circles.text == ("<b>A100<br>L4<br>T4</b>", "A100<br>L4", "A100<br>T4", "end")
    said = [note.text for note in figure.layout.annotations if note.text]
    assert sorted(said) == sorted(
        ["A100", "<b>1 × L4</b>", "<b>1 × T4</b>", "<b>1 × A100</b>", "<b>1 × L4</b>", "T4", "A100"]
    )
    dark = [note for note in figure.layout.annotations if note.showarrow and note.arrowwidth == 2]
    assert len(dark) == 5  # four stages and the end
    assert len(figure.layout.shapes) == 3  # a class may follow itself in every state


def test_a_walk_that_takes_a_slow_link_is_refused():
    with pytest.raises(pl.errors.InvalidValue, match="expected one of A100, L4 next"):
        course.plot_states(FOLLOWS, ["L4", "T4"])
