"""The pictures of notebook 04: predictions against the truth."""

from pipelab import course

MIXES = ["a", "b", "c", "d", "e"]
PREDICTED = [100.0, 300.0, None, 90.0, 50.0]
POSSIBLE = [100.0, 200.0, 70.0, 100.0, None]


def test_every_prediction_is_a_point_of_its_kind():
    figure = course.plot_predictions(MIXES, PREDICTED, POSSIBLE)
    drawn = {t.name: list(zip(t.text, t.x, t.y, strict=True)) for t in figure.data[1:]}
    assert drawn == {
        "right": [("a", 100, 100)],
        "too little": [("d", 100, 90)],
        "too much": [("b", 200, 300)],
        "a rate, but the model does not fit": [("e", 0, 50)],
    }
    title = figure.layout.title.text
    assert title.startswith(
        "Too much for 1 of 3 mixes that hold the model, by up to 1.50 times (b)"
    )
    (worst,) = figure.layout.annotations
    assert (worst.text, worst.x, worst.y) == ("b", 200, 300)


def test_the_last_bit_of_a_rate_is_no_error():
    assert course.outcome_of_prediction(100 * (1 + 1e-12), 100) == "right"
    assert course.outcome_of_prediction(100, 100 * (1 + 1e-12)) == "right"
    assert course.outcome_of_prediction(None, None) == "infeasible, and said so"
    assert course.outcome_of_prediction(None, 100) == "called infeasible, but is not"


def test_bars_count_the_mixes_of_every_outcome():
    first = [course.outcome_of_prediction(p, q) for p, q in zip(PREDICTED, POSSIBLE, strict=True)]
    last = [course.outcome_of_prediction(q, q) for q in POSSIBLE]
    figure = course.plot_fixes({"as published": first, "fixed": last})
    counts = {trace.name: list(trace.x) for trace in figure.data}
    assert counts["right"] == [1, 4]
    assert counts["infeasible, and said so"] == [0, 1]
    assert [sum(column) for column in zip(*counts.values(), strict=True)] == [5, 5]
    assert figure.layout.title.text == (
        "Of 4 mixes that hold the model, 1 is right as published and 4 are after the last fix"
    )
