"""The pictures of notebook 03: a solver's answer with its first fault, and the staircase bound."""

from itertools import pairwise

import pytest

import pipelab as pl
from pipelab import course
from pipelab.figures.theme import BOTTLENECK, WRONG

LINE = [3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10]
LAYERS = [19, 19, 19, 4, 4, 4, 4, 2, 2, 2, 1]


def _pairs(*line):
    return list(pairwise(line))


def _arrows(figure):
    return [a.arrowcolor for a in figure.layout.annotations if a.showarrow]


@pytest.mark.parametrize(
    ("ms", "layers", "links", "says"),
    [
        (324, LAYERS, _pairs(*LINE), "6,321 tokens/s, and the evaluator agrees"),
        (300, LAYERS, _pairs(*LINE), "Claimed: 6,827 tokens/s. But the evaluator says 6,321"),
        (324, LAYERS, [], "Claimed: 6,321 tokens/s. But no GPU sends to another"),
        (342, [18, *LAYERS[1:]], [], "Claimed: 342 ms. But 1 layer is on no GPU"),
        (450, [25, 25, 25, 5, *[0] * 7], [], "But GPUs 0, 1, 2 cannot hold that many layers"),
        (391, [23, 22, 19, 4, 4, 4, 4, *[0] * 4], _pairs(0, 1, 2, 3, 4, 5, 6), "stage 1 (layers 1–23) needs"),
        (342, LAYERS, _pairs(3, 4, 5, 6, 0, 1, 2) + _pairs(7, 8, 9, 10, 7), "But GPUs 7, 8, 9, 10 form a ring that"),
    ],
)  # fmt: skip
def test_the_title_names_the_first_fault(ms, layers, links, says):
    figure = course.plot_answer(course.three_sites(), ms, layers, links)
    assert says in figure.layout.title.text
    assert len(_arrows(figure)) == len(links)


def test_rings_are_red_and_below_the_pipeline():
    links = _pairs(3, 4, 5, 6, 0, 1, 2) + _pairs(7, 8, 7) + _pairs(9, 10, 9)
    figure = course.plot_answer(course.three_sites(), 342, LAYERS, links)
    assert "GPUs 7, 8 and GPUs 9, 10 form rings" in figure.layout.title.text
    assert sorted(_arrows(figure)) == [BOTTLENECK] * 6 + [WRONG] * 4
    heights = {y for trace in figure.data if trace.text and len(trace.text) == 11 for y in trace.y}
    assert len(heights) == 2
    assert {a.text for a in figure.layout.annotations} >= {"pipeline", "ring 1", "ring 2"}


def test_the_staircase_stacks_what_each_type_holds():
    problem = course.three_sites()

    def most(gpu, rate):
        return int(2048000 / (rate * problem.costs.ms_per_layer[gpu.type]) + 1e-9)

    best = pl.solve(problem).throughput
    at, above = (
        course.plot_staircase(problem, most, best),
        course.plot_staircase(problem, most, best + 1),
    )
    assert "At 6,321 tokens/s 81 layers fit: enough" in at.layout.title.text
    assert "At 6,322 tokens/s 77 layers fit: 3 too few" in above.layout.title.text
    stacked = [trace for trace in at.data if trace.stackgroup]
    where = list(stacked[0].x).index(best)
    assert [trace.y[where] for trace in stacked] == [57, 16, 8]
    assert at.data[-1].y[1] == 81
    assert at.data[-1].line.color == BOTTLENECK != above.data[-1].line.color == WRONG
