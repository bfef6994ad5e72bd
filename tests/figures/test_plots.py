"""Figures draw the numbers they are given, the same number of traces whatever the values."""

import dataclasses

import pytest

import pipelab as pl
from pipelab.candidates import list_allocations, list_connections
from pipelab.course.n05 import leave_out
from pipelab.course.pictures import plot_lines
from pipelab.course.reading_tables import show_table
from pipelab.engine.formulations.joint_ilp_forms import joint_formulation
from pipelab.engine.methods.joint import joint_size
from pipelab.figures.growth import plot_growth
from pipelab.figures.placements import limited_by, placement_parts, plot_placement
from pipelab.figures.progress import plot_progress
from pipelab.figures.theme import TYPE_COLOURS, colour_of_types, finish, ink_on, template
from pipelab.writeup.linear_rates import with_link_units


def _bars(figure):
    blocks = figure.data[0]
    places = zip(blocks.marker.color, blocks.y, blocks.base, blocks.x, strict=True)
    return {(colour, y, base + 0.5, x) for colour, y, base, x in places}


def test_a_placement_is_drawn_layer_by_layer_and_gpu_by_gpu(tiny):
    figure = plot_placement(tiny, pl.Placement.of([(3, (0, 1)), (1, (2,))]))
    colours = colour_of_types(["A100", "V100"])
    # colour of the GPU type, row, first layer counted from 1, number of layers
    assert _bars(figure) == {
        (colours["A100"], 0, 1, 3),
        (colours["A100"], 1, 1, 3),
        (colours["V100"], 2, 4, 1),
    }
    assert figure.layout.yaxis.ticktext == (
        "GPU 0 · A100",
        "GPU 1 · A100",
        "<b>GPU 2 · V100 ◀</b>",
        "GPU 3 · V100 (idle)",
    )


def test_the_bottleneck_stage_is_framed_and_named(tiny):
    figure = plot_placement(tiny, pl.Placement.of([(3, (0, 1)), (1, (2,))]))
    frames = figure.data[1]
    assert list(zip(frames.y, frames.base, frames.x, strict=True)) == [(2, 3.5, 1)]
    assert "133.1 tokens/s in 2 stages" in figure.layout.title.text
    assert "limited by stage 2 (framed);" in figure.layout.title.text


def test_a_bottleneck_link_is_drawn_between_its_gpus(two_stages):
    slow = dataclasses.replace(two_stages, cluster=two_stages.cluster.scaled_bandwidth(0.05))
    figure = plot_placement(slow, pl.Placement.of([(2, (0,)), (2, (1,))]))
    line = figure.data[-1]
    assert (list(line.x[:2]), list(line.y[:2])) == ([2.5, 2.5], [0, 1])
    assert not figure.data[1].y
    assert "limited by link 1→2 (dotted);" in figure.layout.title.text


def test_titles_say_how_the_bottleneck_is_marked():
    assert limited_by(["stage 1", "stage 2", "stage 3", "stage 4"]) == (
        "limited by stage 1, stage 2, stage 3 and 1 more (framed)"
    )
    assert limited_by(["link 1→2"]) == "limited by link 1→2 (dotted)"
    assert (
        limited_by(["stage 1", "link 1→2"])
        == "limited by stage 1, link 1→2 (stages framed, links dotted)"
    )


def test_the_number_of_traces_does_not_depend_on_the_placement(tiny):
    placements = [[(4, (0,))], [(2, (0,)), (2, (2,))], [(1, (g,)) for g in range(4)]]
    counts = {len(plot_placement(tiny, pl.Placement.of(p)).data) for p in placements}
    assert counts == {3}  # blocks, frames and the bottleneck links


def test_an_empty_cluster_can_be_drawn(tiny):
    figure = plot_placement(tiny)
    assert "4 GPUs, 4 layers to place" in figure.layout.title.text
    assert all("idle" in text for text in figure.layout.yaxis.ticktext)


def test_a_large_cluster_shows_the_gpus_in_use():
    medium = pl.load_case("medium")
    parts = [(8, (0,)), *[(9, (25 + i,)) for i in range(8)]]
    figure = plot_placement(medium, pl.Placement.of(parts))
    assert len(figure.layout.yaxis.ticktext) == 9
    assert "56 GPUs without a stage are not shown" in figure.layout.title.text
    assert "264.2 tokens/s in 9 stages" in figure.layout.title.text


@pytest.mark.slow
def test_the_narrowest_blocks_have_their_number_beside_them():
    cluster = pl.Cluster.from_counts({"A100": 17}, 800, 400)
    problem = dataclasses.replace(pl.load_case("medium"), cluster=cluster)
    sizes = [60, 6, *[1] * 14]
    figure = plot_placement(problem, pl.Placement.of([(n, (i,)) for i, n in enumerate(sizes)]))
    assert list(figure.data[0].text[:4]) == ["stage 1", "stage 2", "3", "4"]
    assert list(figure.data[0].textposition) == ["inside", "inside", *["outside"] * 14]
    assert figure.layout.title.text.endswith("1 GPU without a stage is not shown</sup>")


def test_progress_shows_bound_and_incumbent(two_stages):
    result = pl.solve(two_stages, "joint")
    bound, found = plot_progress(result).data[2:]
    assert list(bound.y) == sorted(bound.y, reverse=True)
    assert bound.y[-1] == pytest.approx(found.y[-1])
    assert bound.x[-1] == found.x[-1] >= result.details["solve_seconds"]


def test_progress_of_a_solve_stopped_at_once_shows_what_there_is(two_stages):
    result = pl.solve(two_stages, "joint", time_limit=0)
    assert "tiny: 213.5 tokens/s after" in plot_progress(result).layout.title.text


def test_growth_draws_the_counted_numbers():
    sizes = {f"tiny, {k}": joint_size(pl.load_case("tiny", max_gpus_per_stage=k)) for k in (1, 2)}
    figure = plot_growth(sizes, limit=1000)
    assert [list(t.y) for t in figure.data] == [[40, 100], [120, 420], [321, 1041]]
    assert "4 for each allocation of tiny, 2" in figure.layout.title.text


def test_text_on_every_colour_has_contrast():
    assert {ink_on(c) for c in TYPE_COLOURS} == {"black", "white"}
    assert ink_on("#F0E442") == "black"
    assert ink_on("#0072B2") == "white"


def test_a_type_has_one_colour_in_every_case_and_cluster():
    groups = [[gpu.type for gpu in pl.load_case(name).cluster.gpus] for name in pl.writeup.cases()]
    groups += [
        part["gpu_type"].tolist() for _, part in pl.hardware.clusters().groupby(level="cluster")
    ]
    seen = {}
    for types in groups:
        colours = colour_of_types(types)
        assert len(set(colours.values())) == len(colours)  # told apart within one figure
        for gpu_type, colour in colours.items():
            assert seen.setdefault(gpu_type, colour) == colour
    assert seen["A100"] == seen["A100-SXM-40"] == seen["A100-SXM-80"]  # a family looks the same


def test_every_type_with_facts_has_a_colour_of_its_own_family():
    for gpu_type in pl.hardware.gpus().index:
        alone = colour_of_types([gpu_type])[gpu_type]
        assert colour_of_types(["mine", gpu_type, "yours"])[gpu_type] == alone
    assert len(set(colour_of_types(["L4", "L20", "L40", "L40S"]).values())) == 4


def test_a_type_has_one_colour_whatever_the_order_of_its_gpus():
    assert colour_of_types(["A", "B", "A"]) == {"A": TYPE_COLOURS[0], "B": TYPE_COLOURS[1]}
    assert colour_of_types(["T4", "A100"])["A100"] == colour_of_types(["A100"])["A100"]


def test_tables_keep_text_left_and_escape_it(tiny):
    html = show_table([{"name": "<b>x</b>", "rate": 1.23456789}])._repr_html_()
    assert "&lt;b&gt;x" in html
    assert ">1.235<" in html
    assert "text-align: left" in html


def test_the_formulation_is_shown_from_the_registry(tiny):
    shown = joint_formulation(tiny)
    frame = shown.to_frame()
    assert list(frame["family"]) == [f.name for f in shown.form.families]
    assert frame["rows here"].sum() == 2010
    assert r"\forall \ell" in frame["formula"][0]
    assert "2,010 rows" in shown._repr_html_()


def test_long_names_in_tables_may_be_broken(tiny):
    shown = pl.evaluate(tiny, pl.Placement.of([(4, (0,))]))._repr_html_()
    assert "memory_<wbr>needed_<wbr>gb" in shown
    assert "<code>link_<wbr>needs_<wbr>sender</code>" in joint_formulation(tiny)._repr_html_()
    assert "&lt;b&gt;" in show_table([{"<b>": 1}])._repr_html_()


@pytest.mark.slow
def test_leaving_out_exclusivity_is_found_out_by_the_evaluator(tiny):
    links = {("A100", "V100"): 100, ("A100", "T4"): 12, ("V100", "T4"): 12}
    three = pl.Cluster.from_counts(
        {"A100": 1, "V100": 1, "T4": 1}, {"A100": 60, "V100": 32, "T4": 32}, links
    )
    hard = dataclasses.replace(
        tiny, cluster=three, model=dataclasses.replace(tiny.model, layer_weight_gb=25)
    )
    whole, without = leave_out(hard), leave_out(hard, "gpu_exclusivity")
    assert (whole.predicted_tokens_per_s, whole.verdict) == (pytest.approx(48, abs=1e-4), "holds")
    assert without.predicted_tokens_per_s > 133
    assert "used more than once" in without.verdict
    forgotten = leave_out(hard, "successor", "predecessor")
    assert forgotten.verdict == "it yields only 48 tokens/s"
    with pytest.raises(
        pl.errors.UnknownName, match="no family 'sucessor'; did you mean 'successor'"
    ):
        leave_out(hard, "sucessor")


def test_a_guess_shows_its_answer_beside_a_prediction_and_is_escaped():
    asked = pl.course.guess('a < "b"?', "yes & no")
    assert "a &lt; &quot;b&quot;?" in asked._repr_html_()
    assert "yes" not in asked._repr_html_() + repr(asked)
    for none_yet in ("", "  "):
        folded = asked(none_yet)
        assert folded._repr_html_().index("<details>") < folded._repr_html_().index("yes &amp; no")
        assert "yes" not in repr(folded)
    said = asked("<b> & c")
    assert "<details>" not in said._repr_html_()
    assert "&lt;b&gt; &amp; c" in said._repr_html_()
    assert repr(said) == "your prediction: <b> & c\nanswer: yes & no"
    assert repr(asked(3)).startswith("your prediction: 3\n")


def test_what_a_figure_does_not_take_is_named(tiny):
    result = pl.solve(tiny)
    with pytest.raises(pl.errors.UnknownName, match="this figure has no option 'colour'"):
        pl.plot(result, colour="red")
    with pytest.raises(
        pl.errors.InvalidValue, match=r"plot: others = .*too many positional arguments"
    ):
        pl.plot(result, 3)
    with pytest.raises(
        pl.errors.InvalidValue, match="expected a table of against_measured, with what"
    ):
        pl.plot(result.to_frame())


def test_a_plan_with_its_number_in_flight_is_drawn_and_saved_like_any_other(tiny, tmp_path):
    problem = with_link_units(tiny, "tokens")
    result = pl.solve(problem)
    assert f"with {result.in_flight} in flight" in pl.plot(result).layout.title.text
    assert pl.plot(result) == pl.plot(result.problem, result.placement)
    path = pl.save(result, tmp_path / "plan.json")
    assert pl.load_placement(path) == result.placement
    with pytest.raises(
        pl.errors.InvalidValue, match="expected a Result, a Deployment, a TradeOff, a Schedule or"
    ):
        pl.save(result.placement, tmp_path / "plan.json")
    heavy = dataclasses.replace(problem, model=dataclasses.replace(tiny.model, layer_weight_gb=500))
    none = pl.solve(heavy)
    with pytest.raises(pl.errors.InvalidValue, match="expected a result that has one"):
        pl.plot(none)


def test_a_choice_says_what_is_wrong_with_it():
    """What an unfinished program chose: a GPU used twice, a layer left out, a claim that is not reached."""
    problem = pl.course.seven_gpus(40, t4s=0)
    allocations = list_allocations(problem)
    said = {}
    for name, wanted in {
        "twice": [(range(1), (0,)), (range(1, 2), (0,))],
        "half": [(range(1), (0,))],
        "one": [(range(2), (0,))],
    }.items():
        z = [(a.layers, a.gpus) in wanted for a in allocations]
        said[name] = pl.course.plot_choice(problem, allocations, z, 6400.0).layout.title.text
    assert "claims 6,400 tokens/s, with 2 stages on GPU 0" in said["twice"]
    assert "with 1 of 2 blocks placed" in said["half"]
    assert "; the placement reaches 3,200" in said["one"]


def test_a_choice_has_a_box_for_each_run_of_neighbouring_gpus():
    """GPUs 3 and 6 are not 4 and 5."""
    problem = pl.course.seven_gpus()
    allocations = list_allocations(problem)
    z = [(a.layers, a.gpus) == (range(1), (3, 4, 6)) for a in allocations]
    figure = pl.course.plot_choice(problem, allocations, z, 100.0)
    boxes = [(shape.y0, shape.y1) for shape in figure.layout.shapes]
    assert boxes == [(2.6, 4.4), (5.6, 6.4)]
    assert [a.y for a in figure.layout.annotations if a.text] == [3.5]


def test_a_choice_draws_a_link_to_a_stage_that_is_not_chosen():
    problem = pl.course.seven_gpus(40, t4s=0)
    allocations = list_allocations(problem)
    connections = list_connections(problem, allocations)
    c = connections[0]
    z = [n == c.sender for n in range(len(allocations))]
    figure = pl.course.plot_choice(
        problem, allocations, z, 1.0, connections, [x == c for x in connections]
    )
    assert [shape.line.dash for shape in figure.layout.shapes] == ["dot", "solid"]
    assert sum(note.showarrow for note in figure.layout.annotations) == 1


def test_a_search_is_drawn_with_its_fates_and_what_is_open():
    root = {"parent": None, "choice": "", "bound": 9.0, "best": 0, "fate": "branched"}
    first = {"parent": 0, "choice": "a: yes", "bound": 6.0, "best": 6.0, "fate": "placement"}
    last = {
        "parent": 0,
        "choice": "a: no",
        "bound": float("-inf"),
        "best": 6.0,
        "fate": "infeasible",
    }
    tree = pl.course.plot_tree([root, first, last])
    assert "3 nodes prove that 6 tokens/s is the optimum" in tree.layout.title.text
    assert [t.name for t in tree.data] == ["yes", "no", "branched", "placement", "infeasible"]
    assert tree.data[2].text == ("a?<br>9",)
    closing = pl.course.plot_closing({"half": [root, first], "all": [root, first, last]})
    title = closing.layout.title.text
    assert "half: open by 50% after 2 nodes; all: proven after 3 nodes" in title
    # what is known after so many nodes
    assert [(line.x, line.y) for line in closing.data[2:]] == [
        ((1, 2, 3), (9, 9, 6)),
        ((1, 2, 3), (None, 6, 6)),
    ]


def test_lines_with_ranges_have_a_bar_from_the_least_to_the_most():
    lines, ranges = {"a": [1.0, 4.0]}, {"a": [(0.5, 3.0), (4.0, 4.0)]}
    bar = plot_lines([1, 2], lines, "a grows", ("n", "s"), ranges=ranges).data[0].error_y
    assert (list(bar.array), list(bar.arrayminus), bar.symmetric) == ([2, 0], [0.5, 0], False)
    assert plot_lines([1, 2], lines, "a grows", ("n", "s")).data[0].error_y.array is None


@pytest.mark.parametrize(
    ("x", "dtick"), [([1, 2], 1), ([3], 1), ([0, 20, 40], None), ([0, 0.5, 1], None)]
)
def test_whole_numbers_have_no_ticks_between_them(x, dtick):
    figure = plot_lines(x, {"a": [1.0] * len(x)}, "a stays as it is", ("n", "s"))
    assert figure.layout.xaxis.dtick == dtick


def test_a_title_is_never_wider_than_its_figure_which_grows_instead():
    long = ", ".join(["what is to be seen in this figure is this"] * 4)
    short, tall = (finish([], title, "a note")["layout"] for title in ("short", long))
    *lines, note = tall["title"]["text"].split("<br>")
    assert " ".join(lines) == long
    assert max(map(len, lines)) <= 100
    assert note == "<sup>a note</sup>"
    more = 20 * (len(lines) - 1)
    assert (
        tall["height"] - short["height"] == tall["margin"]["t"] - short["margin"]["t"] == more > 0
    )
    # the toolbar stands beside the drawing, in the margin
    assert template().layout.modebar.orientation == "v"
    assert template().layout.margin.r >= 40


def test_a_lane_of_a_gantt_chart_has_all_of_its_numbers_or_none():
    """Numbers that stop after 9 would look as if work stopped there."""
    timeline = pl.simulate(pl.schedule("1F1B", 4, 14), pl.StageCosts(1, 1, 1))
    for trace in pl.gantt(timeline).data[1:]:
        for lane in set(trace.y):
            texts = {t for t, y in zip(trace.text, trace.y, strict=True) if y == lane}
            assert texts in ({""}, {str(i) for i in range(14)})
    forward, backward = pl.gantt(timeline).data[1:]
    assert set(forward.text) == {""}  # a forward has room for one digit, but not for two
    assert "13" in backward.text


def test_a_column_of_a_sweep_can_be_named(tiny):
    def make(batch):
        return dataclasses.replace(
            tiny, workload=dataclasses.replace(tiny.workload, batch_size=batch)
        )

    swept = pl.sweep(make, pl.grid(batch=(16, 32)), jobs=1, progress=False)
    assert pl.plot(swept, x="batch").layout.xaxis.title.text == "batch"


def test_where_nothing_fits_the_gpus_are_drawn_idle(tiny):
    parts = placement_parts(tiny, None, "no placement exists")
    assert parts["layout"]["yaxis"]["ticktext"] == [
        "GPU 0 · A100 (idle)",
        "GPU 1 · A100 (idle)",
        "GPU 2 · V100 (idle)",
        "GPU 3 · V100 (idle)",
    ]
