"""The pictures of notebook 01: splits with the time of every stage, and the table of the exact one."""

import numpy as np
import pytest

import pipelab as pl
from pipelab import course

THREE_SITES = course.three_sites()
LISTED = range(11)


def _bars(figure):
    """Of every split: (time, frame, colour) of its stages."""
    return [
        list(zip(trace.y, trace.marker.line.width, trace.marker.color, strict=True))
        for trace in figure.data
        if trace.orientation != "h" and trace.showlegend is False
    ]


@pytest.mark.parametrize("order", [LISTED, (3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10)])
def test_bars_are_what_the_evaluator_says(order):
    result = pl.solve(THREE_SITES, "proportional", gpus=list(order))
    report = pl.evaluate(THREE_SITES, result.placement)
    split = [stage.layers for stage in result.placement.stages]
    (bars,) = _bars(course.plot_splits(THREE_SITES, {"mine": split}, order))
    assert [ms for ms, *_ in bars] == pytest.approx(
        [2048000 / stage.throughput for stage in report.stages]
    )
    slowest = max(ms for ms, *_ in bars)
    assert [bool(frame) for _, frame, _ in bars] == [ms == slowest for ms, *_ in bars]


def test_the_title_ranks_the_splits_that_fit():
    splits = {
        "too many": (*pl.splits.split_even(70, 10), range(70, 80)),
        "<b>": pl.splits.split_proportional(80, [40] * 3 + [24] * 4 + [16] * 4),
        "flops": pl.splits.split_by_flops(THREE_SITES.model.work_factors, 11),
    }
    figure = course.plot_splits(THREE_SITES, splits)
    title = figure.layout.title.text
    assert title.startswith("&lt;b&gt;: 750 ms for the slowest stage; flops takes 60% more<br>")
    too_many, *others = _bars(figure)
    assert [place for place, bar in enumerate(too_many) if bar[2] == "#CC3311"] == [10]
    assert "#CC3311" not in {colour for bars in others for *_, colour in bars}
    blocks = [trace.x for trace in figure.data if trace.orientation == "h"]
    assert blocks == [tuple(len(part) for part in split) for split in splits.values()]
    title = course.plot_splits(THREE_SITES, {"too many": splits["too many"]}).layout.title.text
    assert title.startswith("No split fits in memory")


BEST = np.array([[0, np.inf, np.inf, np.inf], [np.inf, 3, 7, np.inf], [np.inf, np.inf, 4, 8]])
START = np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]])


def test_the_path_is_drawn_once_the_table_is_full():
    figure = course.plot_split_table(BEST, START, ["A", "<i>"])
    table, path = figure.data
    assert np.allclose(
        table.customdata, np.where(np.isfinite(BEST[1:]), BEST[1:], np.nan), equal_nan=True
    )
    assert (list(path.x), list(path.y)) == ([0, 1, 3], [0, 1, 2])
    assert [note.text for note in figure.layout.annotations] == ["1", "3"]
    assert figure.layout.title.text.startswith(
        "3 layers on 2 GPUs take 8 ms; the path back reads 1 + 2<br>"
    )
    assert list(figure.layout.yaxis.ticktext) == ["1 · A", "2 · &lt;i&gt;"]


def test_a_table_that_is_not_full_says_what_fits_so_far():
    figure = course.plot_split_table(BEST, START, ["A", "B"], 1)
    assert len(figure.data) == 1
    assert np.isnan(np.array(figure.data[0].customdata, dtype=float)[1]).all()
    assert figure.layout.title.text.startswith("The first GPU holds at most 2 of 3 layers")
    best = np.vstack([BEST[:2], [[np.inf, np.inf, 4, np.inf]]])
    title = course.plot_split_table(best, START, ["A", "B"]).layout.title.text
    assert title.startswith("The first 2 GPUs hold at most 2 of 3 layers")
    three = np.vstack([BEST, [[np.inf, np.inf, np.inf, 5]]])
    title = course.plot_split_table(three, START, ["A", "B", "C"], 2).layout.title.text
    assert title.startswith("3 layers on the first 2 GPUs take 8 ms")
