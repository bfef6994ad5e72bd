"""The picture of a cut: a block per stage, a bar per stage and link, the bottleneck framed."""

import pytest

import pipelab as pl
from pipelab import course
from pipelab.display import number


def _bars(figure):
    """(Height, frame, colour) of all bars of stages and links, in pipeline order."""
    bars = {}
    for trace in figure.data:
        if trace.orientation != "h" and trace.showlegend is False:
            marks = zip(trace.marker.line.width, trace.marker.color, strict=True)
            bars |= dict(zip(trace.x, zip(trace.y, marks, strict=True), strict=True))
    return [(height, *mark) for _, (height, mark) in sorted(bars.items())]


@pytest.mark.quick(1)
@pytest.mark.parametrize("per_stage", [1, 2])
def test_bars_are_what_the_evaluator_says(per_stage):
    problem = course.three_sites(per_stage)
    placement = pl.solve(problem).placement
    report, figure = pl.evaluate(problem, placement), course.plot_cut(problem, placement)
    bars = _bars(figure)
    assert [b[0] for b in bars[::2]] == pytest.approx(
        [2048000 / s.throughput for s in report.stages]
    )
    assert [b[0] for b in bars[1::2]] == pytest.approx(
        [2048000 / x.throughput for x in report.links]
    )
    framed = [i // 2 + 1 for i, (_, width, _) in enumerate(bars) if width]
    assert tuple(f"stage {i}" for i in framed) == report.bottlenecks
    assert figure.layout.title.text.startswith(f"{number(report.throughput)} tokens/s: GPUs ")
    (blocks,) = [list(trace.x) for trace in figure.data if trace.orientation == "h"]
    assert blocks == [len(stage.layers) for stage in placement.stages]


def test_a_link_can_be_the_bottleneck_and_idle_gpus_are_counted():
    cut = [(10, (3,)), (20, (0,)), (20, (1,)), (20, (2,)), (8, (4,)), (2, (7,))]
    title = course.plot_cut(course.three_sites(), pl.Placement.of(cut)).layout.title.text
    assert title.startswith("762.9 tokens/s: the link from GPU 4 to GPU 7 takes 2,684 ms")
    assert "5 GPUs idle" in title


def test_what_does_not_fit_is_drawn_and_said():
    problem = course.three_sites()
    cut = pl.Placement.of([*[(7, (g,)) for g in range(10)], (10, (10,))])
    figure = course.plot_cut(problem, cut)
    with pytest.raises(pl.errors.InvalidPlacement):
        pl.evaluate(problem, cut)
    expected = "Does not fit: stage 11 needs 21.2 GB, and T4 has 16"
    assert figure.layout.title.text.startswith(expected)
    assert [i for i, bar in enumerate(_bars(figure)) if bar[2] == "#CC3311"] == [20]
