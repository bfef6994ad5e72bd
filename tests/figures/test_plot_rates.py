"""The histogram of all rates: what it counts, and what it says of those that are marked."""

import pytest

from pipelab.course import plot_rates


def _title(figure):
    return figure.layout.title.text.split("<br>")[0]


def test_only_what_fits_is_counted_and_every_mark_says_what_it_beats():
    figure = plot_rates([0, 0, 100, 200, 200, 400], {"even": 200, "by speed": 100, "odd": 0})
    assert sum(figure.data[0].y) == 4
    assert [note.text for note in figure.layout.annotations] == [
        "<b>by speed</b> 100 beats none",
        "<b>even</b> 200 beats 25%",
        "<b>best</b> 400 beats 75%",
    ]
    assert [trace.x[0] for trace in figure.data[1:]] == [100, 200, 400]
    assert (
        _title(figure) == "Even beats 25% of the placements that fit; the best is 2.0 times as fast"
    )


def test_marks_of_one_rate_share_a_line():
    figure = plot_rates([100, 200, 400], {"a": 200, "b": 200 * (1 + 1e-12), "c": 400})
    assert [note.text for note in figure.layout.annotations] == [
        "<b>a and b</b> 200 beats 33%",
        "<b>best and c</b> 400 beats 67%",
    ]
    assert _title(figure) == "C is as fast as the best of all placements, 400 tokens/s"


@pytest.mark.parametrize("marks", [{}, {"even": 0}])
def test_without_a_mark_that_fits_the_title_says_so(marks):
    assert (
        _title(plot_rates([0, 100], marks))
        == "No rule finds a placement that fits; the best has 100 tokens/s"
    )


def test_marks_that_beat_nothing_are_told_so():
    figure = plot_rates([100, 100, 560], {"even": 100, "by speed": 100})
    assert (
        _title(figure)
        == "No rule beats any of the placements that fit; the best is 5.6 times as fast"
    )


def test_almost_all_is_not_all():
    figure = plot_rates([*range(1, 100_001), 100_000], {"good": 99_999})
    assert figure.layout.annotations[0].text == "<b>good</b> 99,999 beats over 99.99%"
    assert figure.layout.annotations[1].text == "<b>best</b> 100,000 beats over 99.99%"
