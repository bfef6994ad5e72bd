"""The notebooks' own figures have the numbers of the evaluator and of the timeline."""

import numpy as np
import pytest

import pipelab as pl
from pictures import CUT, HELD, rings
from pipelab import course
from pipelab.candidates import list_allocations
from pipelab.display import number

THREE_SITES = course.three_sites()
LINE = (3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10)


def title(figure):
    return figure.layout.title.text.split("<br>")[0]


def bars(figure):
    """(Height, whether framed) of the bars of stages and links, from left to right."""
    found = {}
    for trace in figure.data:
        if trace.orientation != "h" and trace.showlegend is False:
            marks = zip(trace.y, map(bool, trace.marker.line.width), strict=True)
            found |= dict(zip(trace.x, marks, strict=True))
    return [bar for _, bar in sorted(found.items())]


def ms(parts):
    return pytest.approx([2048000 / part.throughput for part in parts])


@pytest.mark.quick(1)
@pytest.mark.parametrize("per_stage", [1, 2])
def test_a_cut_is_what_the_evaluator_says(per_stage):
    problem = course.three_sites(per_stage)
    placement = pl.solve(problem).placement
    report, figure = pl.evaluate(problem, placement), course.plot_cut(problem, placement)
    drawn = bars(figure)
    assert [height for height, _ in drawn[::2]] == ms(report.stages)
    assert [height for height, _ in drawn[1::2]] == ms(report.links)
    framed = [f"stage {i // 2 + 1}" for i, (_, frame) in enumerate(drawn) if frame]
    assert tuple(framed) == report.bottlenecks
    assert title(figure).startswith(f"{number(report.throughput)} tokens/s: GPUs ")
    (blocks,) = [list(trace.x) for trace in figure.data if trace.orientation == "h"]
    assert blocks == [len(stage.layers) for stage in placement.stages]


def test_splits_are_what_the_evaluator_says_and_the_title_ranks_those_that_fit():
    result = pl.solve(THREE_SITES, "proportional", gpus=list(range(11)))
    report = pl.evaluate(THREE_SITES, result.placement)
    split = [stage.layers for stage in result.placement.stages]
    drawn = bars(course.plot_splits(THREE_SITES, {"mine": split}))
    assert [height for height, _ in drawn] == ms(report.stages)
    assert [frame for _, frame in drawn] == [height == max(drawn)[0] for height, _ in drawn]
    splits = {
        "too many": (*pl.splits.split_even(70, 10), range(70, 80)),
        "<b>": pl.splits.split_proportional(80, [40] * 3 + [24] * 4 + [16] * 4),
        "flops": pl.splits.split_by_flops(THREE_SITES.model.work_factors, 11),
    }
    said = title(course.plot_splits(THREE_SITES, splits))
    assert said == "&lt;b&gt;: 750 ms for the slowest stage; flops takes 60% more"


def test_every_frame_has_the_prompts_where_the_timeline_has_them():
    prompts = 6
    plan = pl.Placement.of([*CUT[1:4], (10, (3,)), (8, (4,)), (2, (7,))])
    figure = course.plot_moving(THREE_SITES, plan)
    placed = pl.timeline_of(THREE_SITES, plan, prompts, in_flight=prompts)
    end = placed.timeline.end.reshape(-1, prompts)
    times = [float(step.label) for step in figure.layout.sliders[0].steps]
    seconds = np.linspace(0, end[-1, -1], len(figure.frames))
    assert times == pytest.approx(seconds, abs=0.051)
    for moment, frame in zip(seconds, figure.frames, strict=True):
        x = np.array(frame.data[0].x)
        assert (np.diff(x) <= 1e-9).all()  # none overtakes another
        # a stage is as wide as 1 with the link behind it: what has left it is to its right
        for stage in range(6):
            left = end[2 * stage] <= moment
            assert (x[left] > stage + 0.5).all()
            assert (x[~left] < stage + 0.6).all()
        assert len({*zip(x, frame.data[0].y, strict=True)}) == prompts  # none hides another
        working = [at for at, y in zip(x, frame.data[0].y, strict=True) if y == 0.5]
        assert len({(int(at), at % 1 >= 0.64) for at in working}) == len(working)  # one each
    assert set(figure.frames[0].data[0].x[1:]) == {-0.4}
    assert set(figure.frames[-1].data[0].x) == {6.0}
    said = "Once the pipeline is full, a prompt leaves every 2,684 ms: the link from GPU 4 to GPU 7"
    assert figure.layout.title.text.replace("<br>", " ").startswith(f"{said} takes that long")
    assert len(figure.to_json()) < 60_000


@pytest.mark.parametrize(
    ("ms", "layers", "links", "says"),
    [
        (324, HELD, rings(LINE), "6,321 tokens/s, and the evaluator agrees"),
        (300, HELD, rings(LINE), "Claimed: 6,827 tokens/s. But the evaluator says 6,321"),
        (324, HELD, [], "Claimed: 6,321 tokens/s. But no GPU sends to another"),
        (342, [18, *HELD[1:]], [], "Claimed: 342 ms. But 1 layer is on no GPU"),
        (450, [25, 25, 25, 5, *[0] * 7], [], "But GPUs 0, 1, 2 cannot hold that many layers"),
        (391, [23, 22, 19, 4, 4, 4, 4, *[0] * 4], rings(range(7)), "stage 1 (layers 1–23) needs"),
        (342, HELD, rings(LINE[:7], (7, 8, 9, 10, 7)), "But GPUs 7, 8, 9, 10 form a ring that"),
    ],
)
def test_an_answers_title_names_its_first_fault(ms, layers, links, says):
    assert says in course.plot_answer(THREE_SITES, ms, layers, links).layout.title.text


def test_a_rate_that_differs_in_its_last_bit_is_marked_with_its_equal():
    figure = course.plot_rates([100, 200, 400], {"a": 200, "b": 200 * (1 + 1e-12), "c": 400})
    marks = ["<b>a and b</b> 200 beats 33%", "<b>best and c</b> 400 beats 67%"]
    assert [note.text for note in figure.layout.annotations] == marks


@pytest.mark.parametrize(
    ("prices", "says"),
    [([19, 4, 2], "all GPUs cost 81 layers: prices"), ([17, 4, 2.5], "77 of 80 layers: 3")],
)
def test_prices_stand_end_to_end_beside_all_layers(prices, says):
    figure = course.plot_prices(course.one_network(2), {6000: [18.5, 4, 2.5], 7000: prices}, 6000)
    assert says in title(figure)


def test_what_a_choice_claims_is_held_against_the_placement():
    problem = course.seven_gpus(40, t4s=0)
    candidates = list_allocations(problem)
    z = [(a.layers, a.gpus) == (range(2), (0,)) for a in candidates]
    assert "; the placement reaches 3,200" in title(
        course.plot_choice(problem, candidates, z, 6400)
    )
