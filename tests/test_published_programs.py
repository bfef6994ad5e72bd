"""The restated programs: what they answer, item by item, and every fault on the smallest input that shows it.

Their partition functions' own tests are in test_splits.py, their orders against the clock in
test_timeline.py.
"""

import inspect
import math
import re
from itertools import product

import numpy as np
import pytest

import pipelab as pl
from pipelab.course import published_programs
from pipelab.course.ledger.programs import FAULTS, PROPERTIES, Example, size
from pipelab.course.n14 import plot_faults
from pipelab.course.published_programs import (
    Backward,
    Forward,
    GPipe,
    InsufficientLayers,
    Interleaved,
    InvalidMicroBatch,
    MicroBatch,
    OneFOneBubble,
    Panic,
    PipelineAction,
    PipelineBubbleStats,
    PipelineClock,
    PipelineConfig,
    PipelineScheduler,
    PipelineStageInfo,
    PpError,
    RecvActivations,
    SendActivations,
    StageRankOutOfRange,
    WaitBackward,
    WaitForward,
    ZeroStages,
    assign_layers_bandwidth_aware,
    partition_layers_by_flops,
    partition_layers_evenly,
)


def scheduler(stages, rank, plan=GPipe(), layers=8):  # noqa: B008
    return PipelineScheduler(PipelineConfig(stages, 8, rank, plan), layers)


# The scheduler's own tests, those of its partition functions aside


def test_bubble_fractions_and_memory_as_it_tests_them():
    stats = PipelineBubbleStats(4, 8)
    assert stats.bubble_fraction_gpipe() == pytest.approx(3 / 11, abs=1e-6)
    assert stats.bubble_fraction_1f1b() == pytest.approx(3 / 18, abs=1e-6)
    assert stats.memory_footprint_ratio() == pytest.approx(12 / 32, abs=1e-6)
    assert PipelineBubbleStats(8, 32).optimal_num_micro_batches() == 32


def test_first_last_stage_detection():
    first, last = scheduler(4, 0), scheduler(4, 3)
    assert (first.is_first_stage(), first.is_last_stage()) == (True, False)
    assert (last.is_first_stage(), last.is_last_stage()) == (False, True)


def test_micro_batch_count_in_schedule():
    steps = scheduler(2, 0, layers=4).schedule_steps(4)
    assert [sum(isinstance(step, kind) for step in steps) for kind in (Forward, Backward)] == [4, 4]
    steps = scheduler(4, 1, OneFOneBubble()).schedule_steps(8)
    assert [sum(isinstance(step, kind) for step in steps) for kind in (Forward, Backward)] == [8, 8]


def test_schedule_steps_stage_0_gpipe():
    steps = scheduler(3, 0, layers=6).schedule_steps(3)
    assert [
        sum(isinstance(s, kind) for s in steps)
        for kind in (RecvActivations, Forward, SendActivations)
    ] == [
        0,
        3,
        3,
    ]


def test_this_stage_metadata():
    assert scheduler(4, 2).this_stage() == PipelineStageInfo(
        stage_id=2, num_layers=2, layer_start=4, layer_end=6
    )


def test_micro_batch_creation():
    made = MicroBatch(3, [1.0, 2.0, 3.0], (1, 3), True)
    assert (made.micro_batch_id, made.shape, made.is_last, len(made.data)) == (3, (1, 3), True, 3)


def test_pp_error_display():
    assert str(ZeroStages()) == "num_stages must be at least 1"
    assert str(StageRankOutOfRange(5, 4)) == "stage_rank 5 is out of range for num_stages 4"
    assert str(InsufficientLayers(2, 4)) == "cannot partition 2 layers into 4 stages"
    assert str(InvalidMicroBatch(7)) == "invalid micro-batch id: 7"
    assert {kind.__name__ for kind in PpError.__subclasses__()} == {
        "ZeroStages", "StageRankOutOfRange", "InsufficientLayers", "InvalidMicroBatch",
    }  # fmt: skip


# What its tests leave out


def test_the_default_configuration():
    assert PipelineConfig() == PipelineConfig(
        num_stages=1, num_micro_batches=8, stage_rank=0, schedule=GPipe()
    )
    assert GPipe() != OneFOneBubble()


def test_stages_with_their_layers():
    found = partition_layers_evenly(10, 3)
    assert [(s.stage_id, s.num_layers, s.layer_start, s.layer_end) for s in found] == [
        (0, 4, 0, 4), (1, 3, 4, 7), (2, 3, 7, 10),
    ]  # fmt: skip
    assert partition_layers_by_flops([1, 1, 2], 2) == [
        PipelineStageInfo(0, 2, 0, 2),
        PipelineStageInfo(1, 1, 2, 3),
    ]
    assert partition_layers_by_flops([], 2) == partition_layers_evenly(0, 2) == []


def test_the_steps_of_a_middle_rank_one_by_one():
    """Written out by hand from the Rust text: rank 1 of 3, three microbatches."""

    def down(m):
        return [RecvActivations(0, m), Forward(m), SendActivations(2, m)]

    def back(m):
        return [WaitBackward(2), Backward(m)]

    assert scheduler(3, 1).schedule_steps(3) == [
        *down(0),
        *down(1),
        *down(2),
        *back(2),
        *back(1),
        *back(0),
    ]
    eager = [*down(0), *down(1), *down(2), *back(0), *back(1), *back(2)]
    assert scheduler(3, 1, OneFOneBubble()).schedule_steps(3) == eager
    assert scheduler(3, 1, Interleaved(5)).schedule_steps(3) == eager
    assert scheduler(2, 1, OneFOneBubble()).schedule_steps(2) == [
        RecvActivations(0, 0), Forward(0), RecvActivations(0, 1), Forward(1), Backward(0), Backward(1),
    ]  # fmt: skip


def test_statistics_are_in_single_precision_and_infinite_where_that_is():
    for p, m in product(range(9), repeat=2):
        stats, one = PipelineBubbleStats(p, m), np.float32(1)
        fp, fm = np.float32(p), np.float32(m)
        with np.errstate(all="ignore"):
            expected = (
                (fp - one) / (fm + fp - one),
                (fp - one) / (2 * (fm - one) + fp),
                (fp + fm) / (fp * fm),
            )
        found = (
            stats.bubble_fraction_gpipe(),
            stats.bubble_fraction_1f1b(),
            stats.memory_footprint_ratio(),
        )
        assert all(type(value) is float for value in found)
        np.testing.assert_array_equal(found, np.array(expected, dtype=float))
    assert PipelineBubbleStats(0, 8).memory_footprint_ratio() == math.inf
    assert math.isnan(PipelineBubbleStats(0, 0).memory_footprint_ratio())
    assert math.isnan(PipelineBubbleStats(1, 0).bubble_fraction_gpipe())
    assert PipelineBubbleStats(3, 2).memory_footprint_ratio() != 5 / 6  # as a double


def test_none_of_its_errors_is_ever_raised():
    """On every small input it answers or panics."""
    answers = 0
    for p, rank, layers, m in product(range(4), repeat=4):
        for plan in (GPipe(), OneFOneBubble(), Interleaved(m)):
            made = scheduler(p, rank, plan, layers)
            for attempt in (
                made.this_stage,
                lambda made=made, m=m: made.schedule_steps(m),
                made.is_last_stage,
            ):
                try:
                    attempt()
                    answers += 1
                except Panic:
                    pass
    assert answers > 1000
    assert set(re.findall(r"raise (\w+)", inspect.getsource(published_programs))) == {"Panic"}


def test_wait_forward_is_in_no_order():
    plans = (GPipe(), OneFOneBubble(), Interleaved(2))
    steps = [
        step
        for p, m, plan in product((1, 2, 3), (1, 2, 3), plans)
        for rank in range(p)
        for step in scheduler(p, rank, plan).schedule_steps(m)
    ]
    assert {type(step) for step in steps} == {
        Forward,
        Backward,
        WaitBackward,
        SendActivations,
        RecvActivations,
    }
    assert WaitForward(0).from_stage == 0


# boostr's clock


def kinds(actions):
    return " ".join(f"{action.kind[0]}{action.id}" for action in actions)


def test_the_clock_says_what_it_was_given():
    clock = PipelineClock(4, 6, 1)
    assert (clock.num_stages, clock.num_micro_batches, clock.stage_id) == (4, 6, 1)
    assert (str(PipelineAction("Idle")), str(PipelineAction("Forward", 3))) == (
        "Idle",
        "Forward(3)",
    )


@pytest.mark.parametrize(
    ("stages", "microbatches", "stage", "order"),
    [
        (1, 4, 0, "F0 B0 F1 B1 F2 B2 F3 B3"),
        (4, 4, 0, "F0 F1 F2 F3 B0 B1 B2 B3"),
        (4, 4, 3, "F0 B0 F1 B1 F2 B2 F3 B3"),
        (4, 6, 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"),
    ],
)
def test_1f1b_as_its_tests_have_it(stages, microbatches, stage, order):
    assert kinds(PipelineClock(stages, microbatches, stage).schedule_1f1b()) == order


def test_every_order_of_the_clock_has_every_action_once():
    for p, m in product(range(1, 7), range(1, 9)):
        for k in range(p):
            clock = PipelineClock(p, m, k)
            assert sorted(clock.schedule_1f1b()) == sorted(
                PipelineAction(x, i) for x in FB for i in range(m)
            )
            assert sorted(clock.schedule_zero_bubble()) == sorted(
                PipelineAction(x, i) for x in FIW for i in range(m)
            )
            assert (
                len(set(clock.schedule_interleaved(2)))
                == len(clock.schedule_interleaved(2))
                == 4 * m
            )


FB, FIW = ("Forward", "Backward"), ("Forward", "BackwardInput", "BackwardWeights")


def test_without_microbatches_the_clock_has_nothing_to_do():
    for stage in (0, 1):
        clock = PipelineClock(2, 0, stage)
        assert (
            clock.schedule_1f1b()
            == clock.schedule_zero_bubble()
            == clock.schedule_interleaved(2)
            == []
        )


def test_a_weight_gradient_always_follows_its_input_gradient_so_three_branches_of_the_clock_are_idle():
    for p, m in product(range(1, 6), range(1, 9)):
        for k in range(p):
            order = PipelineClock(p, m, k).schedule_zero_bubble()
            for one, after in zip(order, [*order[1:], None], strict=True):
                if one.kind == "BackwardInput":
                    assert after == PipelineAction("BackwardWeights", one.id)


# The faults


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.program}: {fault.name}")
def test_every_fault_shows_on_the_smallest_of_its_inputs(fault):
    """Found by a search; no smaller one shows it, and not every input does."""
    found, inputs = fault.smallest(), list(fault.inputs)
    assert found is not None
    assert (found.answers, found.right) == fault.shows(*found.arguments)
    assert found.answers != found.right
    assert fault.caught_by in PROPERTIES
    shown = [size(arguments) for arguments in inputs if fault.shows(*arguments)]
    assert size(found.arguments) == min(shown)
    assert len(shown) < len(inputs)


def test_faults_have_names_of_their_own():
    assert len({(fault.program, fault.name) for fault in FAULTS}) == len(FAULTS) > 30


def test_large_inputs_are_written_as_powers():
    assert Example((2, [2**63, 12345678901]), "", "").written == "(2, [2**63, 12345678901])"


def test_every_fault_is_in_the_figure_under_the_property_that_catches_it():
    figure = plot_faults(FAULTS)
    assert [bar.name for bar in figure.data] == ["pmetal", "scheduler", "boostr"]
    for bar in figure.data:
        caught = [f.caught_by for f in FAULTS if f.program == bar.name]
        assert list(bar.x) == [caught.count(broken) for broken in PROPERTIES]
    assert figure.layout.title.text.startswith(
        f"15 of {len(FAULTS)} faults break the property that an input without"
    )
    with pytest.raises(pl.InvalidValue, match="expected at least one"):
        plot_faults([])


def test_two_and_three_nodes_read_no_memory_at_all():
    for nodes in (2, 3):
        for layers, bandwidth in product((3, 5), product((1, 3), repeat=nodes)):
            split = {
                assign_layers_bandwidth_aware(layers, m, bandwidth)
                for m in product((1, 2, 9), repeat=nodes)
            }
            assert len(split) == 1


def _smallest(part):
    (fault,) = [fault for fault in FAULTS if part in fault.name]
    return fault.smallest().arguments


def test_on_their_smallest_inputs_pipelab_is_right_or_refuses():
    layers, memory, bandwidth = _smallest("available_ram is never used")
    held = [len(part) for part in pl.split_bandwidth_aware(layers, memory, bandwidth)]
    assert (held[0] - held[1]) * (memory[0] - memory[1]) > 0
    for part in ("fewer layers than nodes", "zero layers panic", "do not exist are handed out"):
        with pytest.raises(pl.InvalidValue, match="expected"):
            pl.split_bandwidth_aware(*_smallest(part))
    for part in ("or its sum, overflows", "below a megabyte"):
        layers, *rest = _smallest(part)
        memory, bandwidth = rest if len(rest) == 2 else ([1] * 4, rest[0])
        held = [len(part) for part in pl.split_bandwidth_aware(layers, memory, bandwidth)]
        assert held == [len(part) for part in pl.split_proportional(layers, bandwidth)]
    for part in ("with ZeroStages", "with InsufficientLayers"):
        with pytest.raises(pl.InvalidValue, match="stages"):
            pl.split_even(*_smallest(part))
    flops, stages = _smallest("though there are layers enough")
    assert len(pl.split_by_flops(flops, stages)) == stages
    p, m = _smallest("one forward too many")
    assert pl.schedule("1F1B", p, m) != published_programs.scheduler_1f1b(p, m)
    p, m = _smallest("fills a bubble")
    assert pl.schedule("ZBH1", p, m) != published_programs.clock_zero_bubble(p, m)
