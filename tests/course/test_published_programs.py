"""The restated programs: what they answer, item by item, and every fault on the smallest input that shows it.

Their partition functions' own tests are in the ledger (`tests_of_pmetal`), their orders against the
clock in test_timeline.py.
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
    ERRORS,
    MicroBatch,
    Panic,
    PipelineClock,
    PipelineScheduler,
    Step,
    assign_layers_bandwidth_aware,
    scheduler_bubble_fraction_1f1b,
    scheduler_bubble_fraction_gpipe,
    scheduler_memory_ratio,
    scheduler_microbatches,
    seed_by_flops,
    seed_even,
)

ORDERS = ("GPipe", "1F1B", "interleaved")


def scheduler(stages, rank, plan="GPipe", layers=8):
    return PipelineScheduler(stages, rank, plan, total_layers=layers)


def kinds_of(steps):
    return [step.kind for step in steps]


# The scheduler's own tests, those of its partition functions aside


def test_bubble_fractions_and_memory_as_it_tests_them():
    assert scheduler_bubble_fraction_gpipe(4, 8) == pytest.approx(3 / 11, abs=1e-6)
    assert scheduler_bubble_fraction_1f1b(4, 8) == pytest.approx(3 / 18, abs=1e-6)
    assert scheduler_memory_ratio(4, 8) == pytest.approx(12 / 32, abs=1e-6)
    assert scheduler_microbatches(8) == 32


def test_first_last_stage_detection():
    first, last = scheduler(4, 0), scheduler(4, 3)
    assert (first.is_first_stage(), first.is_last_stage()) == (True, False)
    assert (last.is_first_stage(), last.is_last_stage()) == (False, True)


def test_micro_batch_count_in_schedule():
    steps = kinds_of(scheduler(2, 0, layers=4).schedule_steps(4))
    assert [steps.count(kind) for kind in ("Forward", "Backward")] == [4, 4]
    steps = kinds_of(scheduler(4, 1, "1F1B").schedule_steps(8))
    assert [steps.count(kind) for kind in ("Forward", "Backward")] == [8, 8]


def test_schedule_steps_stage_0_gpipe():
    steps = kinds_of(scheduler(3, 0, layers=6).schedule_steps(3))
    counted = [steps.count(kind) for kind in ("RecvActivations", "Forward", "SendActivations")]
    assert counted == [0, 3, 3]


def test_this_stage_metadata():
    assert scheduler(4, 2).this_stage() == (2, range(4, 6))


def test_micro_batch_creation():
    made = MicroBatch(3, [1.0, 2.0, 3.0], (1, 3), True)
    assert (made.micro_batch_id, made.shape, made.is_last, len(made.data)) == (3, (1, 3), True, 3)


def test_pp_error_display():
    assert {name: text.format(7, 4) for name, text in ERRORS.items()} == {
        "ZeroStages": "num_stages must be at least 1",
        "StageRankOutOfRange": "stage_rank 7 is out of range for num_stages 4",
        "InsufficientLayers": "cannot partition 7 layers into 4 stages",
        "InvalidMicroBatch": "invalid micro-batch id: 7",
    }


# What its tests leave out


def test_the_default_configuration():
    assert PipelineScheduler() == PipelineScheduler(
        num_stages=1, num_micro_batches=8, stage_rank=0, schedule="GPipe"
    )


def test_stages_with_their_layers():
    assert seed_even(10, 3) == (range(4), range(4, 7), range(7, 10))
    assert seed_by_flops([1, 1, 2], 2) == (range(2), range(2, 3))
    assert seed_by_flops([], 2) == seed_even(0, 2) == ()


def test_the_steps_of_a_middle_rank_one_by_one():
    """Written out by hand from the Rust text: rank 1 of 3, three microbatches."""

    def down(m):
        return [Step("RecvActivations", m, 0), Step("Forward", m), Step("SendActivations", m, 2)]

    def back(m):
        return [Step("WaitBackward", None, 2), Step("Backward", m)]

    there = [*down(0), *down(1), *down(2)]
    assert scheduler(3, 1).schedule_steps(3) == [*there, *back(2), *back(1), *back(0)]
    eager = [*there, *back(0), *back(1), *back(2)]
    assert scheduler(3, 1, "1F1B").schedule_steps(3) == eager
    assert scheduler(3, 1, "interleaved").schedule_steps(3) == eager
    assert scheduler(2, 1, "1F1B").schedule_steps(2) == [
        *(Step("RecvActivations", 0, 0), Step("Forward", 0)),
        *(Step("RecvActivations", 1, 0), Step("Forward", 1)),
        *(Step("Backward", 0), Step("Backward", 1)),
    ]


def test_statistics_are_in_single_precision_and_infinite_where_that_is():
    for p, m in product(range(9), repeat=2):
        one = np.float32(1)
        fp, fm = np.float32(p), np.float32(m)
        with np.errstate(all="ignore"):
            expected = (
                (fp - one) / (fm + fp - one),
                (fp - one) / (2 * (fm - one) + fp),
                (fp + fm) / (fp * fm),
            )
        found = (
            scheduler_bubble_fraction_gpipe(p, m),
            scheduler_bubble_fraction_1f1b(p, m),
            scheduler_memory_ratio(p, m),
        )
        assert all(type(value) is float for value in found)
        np.testing.assert_array_equal(found, np.array(expected, dtype=float))
    assert scheduler_memory_ratio(0, 8) == math.inf
    assert math.isnan(scheduler_memory_ratio(0, 0))
    assert math.isnan(scheduler_bubble_fraction_gpipe(1, 0))
    assert scheduler_memory_ratio(3, 2) != 5 / 6  # as a double


def test_none_of_its_errors_is_ever_raised():
    """On every small input it answers or panics."""
    answers = 0
    for p, rank, layers, m in product(range(4), repeat=4):
        for plan in ORDERS:
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
    steps = [
        step
        for p, m, plan in product((1, 2, 3), (1, 2, 3), ORDERS)
        for rank in range(p)
        for step in scheduler(p, rank, plan).schedule_steps(m)
    ]
    assert set(kinds_of(steps)) == {
        "Forward",
        "Backward",
        "WaitBackward",
        "SendActivations",
        "RecvActivations",
    }


# boostr's clock


def test_the_clock_says_what_it_was_given():
    clock = PipelineClock(4, 6, 1)
    assert (clock.num_stages, clock.num_micro_batches, clock.stage_id) == (4, 6, 1)


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
    assert " ".join(PipelineClock(stages, microbatches, stage).schedule_1f1b()) == order


def test_every_order_of_the_clock_has_every_action_once():
    for p, m in product(range(1, 7), range(1, 9)):
        for k in range(p):
            clock = PipelineClock(p, m, k)
            assert sorted(clock.schedule_1f1b()) == sorted(
                f"{x}{i}" for x in "FB" for i in range(m)
            )
            assert sorted(clock.schedule_zero_bubble()) == sorted(
                f"{x}{i}" for x in "FIW" for i in range(m)
            )
            assert (
                len(set(clock.schedule_interleaved(2)))
                == len(clock.schedule_interleaved(2))
                == 4 * m
            )


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
                if one[0] == "I":
                    assert after == f"W{one[1:]}"


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
    with pytest.raises(pl.errors.InvalidValue, match="expected at least one"):
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
    held = [len(part) for part in pl.splits.split_bandwidth_aware(layers, memory, bandwidth)]
    assert (held[0] - held[1]) * (memory[0] - memory[1]) > 0
    for part in ("fewer layers than nodes", "zero layers panic", "do not exist are handed out"):
        with pytest.raises(pl.errors.InvalidValue, match="expected"):
            pl.splits.split_bandwidth_aware(*_smallest(part))
    for part in ("or its sum, overflows", "below a megabyte"):
        layers, *rest = _smallest(part)
        memory, bandwidth = rest if len(rest) == 2 else ([1] * 4, rest[0])
        held = [len(part) for part in pl.splits.split_bandwidth_aware(layers, memory, bandwidth)]
        assert held == [len(part) for part in pl.splits.split_proportional(layers, bandwidth)]
    for part in ("with ZeroStages", "with InsufficientLayers"):
        with pytest.raises(pl.errors.InvalidValue, match="stages"):
            pl.splits.split_even(*_smallest(part))
    flops, stages = _smallest("though there are layers enough")
    assert len(pl.splits.split_by_flops(flops, stages)) == stages
    p, m = _smallest("one forward too many")
    assert pl.schedule("1F1B", p, m) != published_programs.scheduler_1f1b(p, m)
    p, m = _smallest("fills a bubble")
    assert pl.schedule("ZBH1", p, m) != published_programs.clock_zero_bubble(p, m)
