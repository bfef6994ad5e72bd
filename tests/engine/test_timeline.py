"""Times and measures: against a second simulator, against formulas, against published numbers and generators."""

import math
import random
from itertools import pairwise

import pytest

import pipelab as pl
from pipelab.course.n08 import published_bubbles
from pipelab.engine.schedules import RULES
from pipelab.io.chrome_traces import chrome_trace
from schedule_oracle import all_sources, halves, peaks, random_costs, random_schedule, simulated

ONE = pl.StageCosts(forward=1, backward_input=1, backward_weight=1)


def run(name, ranks, microbatches, costs=ONE, chunks=None, **options):
    """Costs are of a whole rank."""
    schedule = pl.schedule(name, ranks, microbatches, chunks)
    return pl.simulate(schedule, costs.cut_for(schedule), **options)


def cases(seed):
    """Random schedules with different stages and links."""
    chance = random.Random(seed)
    for _ in range(20):
        schedule = random_schedule(chance)
        costs = random_costs(schedule.stages, chance)
        share = chance.choice([0, 0.25, 1])
        extra = {"overlap": chance.choice([1.0, 0.5]), "weight_activation": share}
        yield schedule, pl.StageCosts(*costs, **extra)


# against an independent simulation, which knows of each action only what it needs


@pytest.mark.parametrize("seed", range(40))
def test_times_work_and_memory_are_those_of_a_second_simulator(seed):
    for schedule, costs in cases(seed):
        for transfers in ("buffered", "queued"):
            timeline = pl.simulate(schedule, costs, transfers=transfers)
            ends, work, waits = simulated(schedule, costs, transfers == "queued")
            assert dict(zip(timeline.columns.texts, timeline.end, strict=True)) == ends
            assert timeline.busy.tolist() == work
            assert (timeline.idle.total + timeline.busy == timeline.makespan).all()
            assert timeline.idle.network.tolist() == waits
            assert all((part >= 0).all() for part in timeline.idle)
            assert timeline.peak_memory == peaks(schedule, costs.weight_activation)
            assert timeline.peak_in_flight == peaks(schedule, 0)


@pytest.mark.parametrize("seed", range(40))
def test_what_was_waited_for_is_what_is_needed_and_ended_last(seed):
    """Half a pair where data is needed, the pair where the rank was busy; the critical path follows it back."""
    for schedule, costs in cases(seed):
        timeline, needed, whole = pl.simulate(schedule, costs), all_sources(schedule), {}
        for row in schedule.actions:
            for before, one in pairwise((None, *row)):
                whole |= {str(part): (one, before) for part in (*one.parts, one)}
        frame = timeline.to_frame().set_index("action")
        start, end, waited = frame["start"], frame["end"], frame["waited_for"]
        bars = {e["name"]: e for e in chrome_trace(timeline)["traceEvents"] if e["ph"] == "X"}
        for text, name in waited.items():
            assert bars[text]["args"].get("waited for", "") == name
            one, before = whole[text]
            if name == "":
                assert (before, start[text]) == (None, 0)
            elif name == str(before):
                assert end[halves(before)[0]] == start[text]
            else:
                link = {k: v for half in halves(one) for k, v in needed[half].items()}[name]
                assert start[text] == end[name] + (0 if link is None else costs.comm[link])
        path = list(map(str, timeline.critical_path))
        assert (start[path[0]], end[path[-1]]) == (0, timeline.makespan)
        for one, two in pairwise(path):
            assert waited[two] in (one, str(whole[one][0]))


def test_of_two_that_end_together_the_one_on_the_same_rank_was_waited_for():
    frame = pl.simulate(pl.schedule("Inference", 2, 2), pl.StageCosts(1)).to_frame()
    assert frame["waited_for"].tolist() == ["", "0F0", "0F0", "1F0"]


# published and known numbers


@pytest.mark.parametrize("row", published_bubbles(), ids=lambda r: f"{r.model}-{r.microbatches}")
def test_zero_bubble_table_5(row):
    for name in ("1F1B", "ZB-H1", "ZB-H2"):
        timeline = pl.simulate(pl.schedule(name, row.ranks, row.microbatches), row.costs)
        assert round(timeline.zb_bubble_rate, 4) == row.rates[name]


SLOW_LINKS = pl.StageCosts(1, 1, 1, comm=0.5)


@pytest.mark.parametrize(
    ("order", "costs", "known"),
    [
        (("1F1B", 4, 8), ONE, {"makespan": 33, "ideal": 24, "bubble_ratio": 3 / 8}),
        (("1F1B", 4, 8), ONE, {"span": 33, "bubble_fraction": 3 / 11, "zb_bubble_rate": 9 / 33}),
        (("1F1B", 2, 2), pl.StageCosts(0, 0, 0), {"bubble_fraction": 0, "zb_bubble_rate": 0}),
        # a span has no bubble where its makespan has
        (("ZBH2", 4, 8), ONE, {"makespan": 27, "span": 24, "zb_bubble_rate": 0}),
        # messages hurt 1F1B more than GPipe
        (("GPipe", 4, 16), SLOW_LINKS, {"makespan": 60}),
        (("1F1B", 4, 16), SLOW_LINKS, {"makespan": 71}),
        (
            ("Interleaved1F1B", 4, 8, 4),
            ONE,
            {"makespan": 26.25, "peak_in_flight": (19, 17, 15, 13)},
        ),
        # a flow shop: once through all, then the slowest stage
        (("Inference", 3, 10), pl.StageCosts([2, 5, 3], comm=[1, 0.5]), {"makespan": 56.5}),
        (("Inference", 2, 50), pl.StageCosts(1), {"peak_in_flight": (1, 1), "peak_memory": (1, 1)}),
    ],
)
def test_known_times_and_measures(order, costs, known):
    name, ranks, microbatches, *chunks = order
    timeline = run(name, ranks, microbatches, costs, *chunks)
    assert {name: getattr(timeline, name) for name in known} == {
        name: pytest.approx(value) for name, value in known.items()
    }


# closed forms and lower bounds


GRID = [(p, m) for p in (1, 2, 4) for m in (1, 2, 3, 4, 7, 8)]
SHAPES = [(1, 1, 1), (0, 0, 0), (3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 3, 0), (0, 3, 1)]


@pytest.mark.parametrize("name", sorted(set(RULES) - {"Inference"}))
def test_closed_forms_equal_the_simulation_wherever_they_claim_to_hold(name):
    claimed = {}
    for p, m in GRID:
        for chunks in (1, 2) if RULES[name].chunked else (None,):
            try:
                schedule = pl.schedule(name, p, m, chunks)
            except pl.errors.InvalidValue:
                continue
            for shape in SHAPES:
                costs = pl.StageCosts(*shape).cut_for(schedule)
                timeline = pl.simulate(schedule, costs)
                for form in pl.closed_forms(schedule, costs):
                    claimed[form.formula] = claimed.get(form.formula, 0) + (form.value is not None)
                    if form.value is not None:
                        got = getattr(timeline, form.quantity)
                        assert got == pytest.approx(form.value), (p, m, chunks, shape, form)
    assert min(claimed.values()) >= 8  # none holds by never claiming anything


@pytest.mark.parametrize("seed", range(40))
def test_the_lower_bound_is_never_above_a_simulation_and_gpipe_takes_its_closed_form(seed):
    """With different stages and links."""
    chance = random.Random(seed)
    for name in ["GPipe", "1F1B", "ZBH1", "ZBH2"] * 5:
        p, m = chance.randint(1, 5), chance.randint(1, 9)
        costs = pl.StageCosts(*([chance.randint(0, 9) for _ in range(n)] for n in (p, p, p, p - 1)))
        schedule = pl.schedule(name, p, m)
        timeline = pl.simulate(schedule, costs)
        held = {"max_in_flight": timeline.peak_in_flight}
        bound = pl.lower_bound(costs, m, p, **held)
        assert pl.lower_bound(costs, m, p) <= bound <= timeline.makespan + 1e-9
        if not timeline.columns.splits_backward:
            whole = pl.lower_bound(costs, m, p, **held, split_backward=False)
            assert bound <= whole <= timeline.makespan + 1e-9
        assert bound <= pl.simulate(schedule, costs, transfers="queued").makespan + 1e-9
        if name == "GPipe":
            assert timeline.makespan == pl.closed_forms(schedule, costs)[0].value


def test_the_lower_bound_is_reached_where_it_is_known_to_be():
    """Four optima were proved with CP-SAT elsewhere; 1F1B has the least of whole backwards on equal stages."""
    for (p, m, *times, held), zbh1, optimum in (
        ((4, 8, 1, 1, 1, 0, 4), 27, 27),
        ((8, 16, 1, 1, 1, 0, 8), 55, 55),
        ((4, 8, 30, 29, 20, 1, 4), 761, 725),
        ((8, 24, 10, 10, 5, 0, 8), 705, 670),
    ):
        costs = pl.StageCosts(*times)
        assert run("ZBH1", p, m, costs).makespan == zbh1
        assert pl.lower_bound(costs, m, p, max_in_flight=held) == optimum
    assert pl.lower_bound(ONE, 8, 4, split_backward=False) == run("1F1B", 4, 8).makespan == 33
    assert pl.lower_bound(ONE, 10_000, 10_000) == 10_000 * 3 + 9_999  # at once
    pairs = pl.Schedule.of("pairs", [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]])
    costs = pl.StageCosts(1, 1, 1, overlap=0.5)
    assert pl.lower_bound(costs, 2, 1) <= pl.simulate(pairs, costs).makespan == 4.5


def test_a_formula_has_no_value_where_it_does_not_hold():
    def values(*order, costs=ONE, **options):
        return [form.value for form in pl.closed_forms(pl.schedule(*order), costs, **options)]

    assert values("ZBH1", 4, 8, costs=pl.StageCosts(1, 1, 2)) == [None, None, (4, 3, 2, 1)]
    assert values("1F1B", 2, 3, costs=pl.StageCosts([1, 2], 1, 1)) == [None, (2, 1)]
    talking = pl.StageCosts(1, 1, 1, comm=5)
    assert values("1F1B", 2, 3, costs=talking) == [None, (2, 1)]
    assert values("ZBV", 1, 4, costs=talking)[0] == 24  # both stages on one rank: nothing is sent
    assert values("GPipe", 3, 8, transfers="queued") == [None, (8, 8, 8)]
    assert values("1F1B", 1, 3, transfers="queued") == [9, (1,)]
    with pytest.raises(pl.errors.UnknownName, match="there is no transfer mode 'fast'"):
        values("1F1B", 1, 3, transfers="fast")
    # another order that only bears the name
    gpipe = pl.schedule("GPipe", 3, 4)
    borrowed = pl.closed_forms(pl.Schedule.of("1F1B", gpipe.actions), ONE)
    assert {form.value for form in borrowed} == {None}
    assert borrowed[0].holds_when.startswith("pl.schedule's own order of 1F1B, which this is not")
    few = [f"{s}F0 {5 - s}F0 {5 - s}I0 {5 - s}W0 {s}I0 {s}W0".split() for s in range(3)]
    too_few = pl.Schedule.of("DualPipeV", few)  # pl.schedule makes none of one microbatch
    assert {form.value for form in pl.closed_forms(too_few, ONE)} == {None}
    idling = [[None, *row] for row in gpipe.actions]
    assert [form.value for form in pl.closed_forms(pl.Schedule.of("GPipe", idling), ONE)] == [
        18,
        (4, 4, 4),
    ]


# memory


def test_memory_over_time_is_taken_and_freed_in_order_and_unknown_without_the_share_of_w():
    steps = run("ZBH1", 1, 2, pl.StageCosts(1, 1, 1, activation=34, weight_activation=32)).memory(0)
    assert steps.time.tolist() == [0, 0, 2, 3, 5, 6]  # F0 I0 W0 F1 I1 W1
    assert steps.amount.tolist() == [0, 34, 32, 34, 32, 0]
    more = run("ZBH1", 1, 1, pl.StageCosts(1, 1, 1, activation=2, weight_activation=3)).memory(0)
    assert [x.tolist() for x in more] == [[0, 0, 2, 3], [0, 2, 3, 0]]  # W needs more than B
    nothing = run("1F1B", 1, 2, pl.StageCosts(0, 0, 0)).memory(0)  # what is held for a moment
    assert [x.tolist() for x in nothing] == [[0, 0, 0], [0, 1, 0]]
    unknown = run("ZBV", 2, 8)
    for attempt in (lambda: unknown.peak_memory, lambda: unknown.memory(0)):
        with pytest.raises(pl.errors.InvalidValue, match=r"weight_activation = None: .*=32 / 34"):
            attempt()


# idle time, optimizer


def test_idle_time_by_cause():
    idle = run("1F1B", 4, 8).idle
    assert idle.warm_up.tolist() == [6, 5, 4, 3]
    assert idle.cool_down.tolist() == [3, 4, 5, 6]
    assert idle.steady.tolist() == idle.network.tolist() == [0, 0, 0, 0]
    slow = pl.simulate(pl.schedule("1F1B", 2, 4), pl.StageCosts([1, 3], [1, 3], [1, 3]))
    assert slow.idle.steady.tolist() == [6, 0]


def test_an_optimizer_that_waits_for_nobody_makes_the_span_count():
    costs = pl.StageCosts(1, 1, 1, optimizer=2)
    together = run("ZBH2", 4, 8, costs)
    alone = run("ZBH2", 4, 8, costs, synchronous_optimizer=False)
    assert (together.iteration_time, alone.iteration_time) == (27 + 2, 24 + 2)


# bad input, showing


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pl.StageCosts([1, math.inf]), "expected numbers from 0 to .*; number 1 is inf"),
        (
            lambda: pl.StageCosts([1, 10**400]),
            "from 0 to 1e.30, or take a larger unit; number 1 is",
        ),
        (lambda: pl.StageCosts(1, overlap=0), "overlap = 0: expected more than 0"),
        (lambda: pl.StageCosts(1, unit="hours"), 'unit = .hours.: expected "", "s", "ms" or "us"'),
        (lambda: pl.lower_bound(ONE, 2, 2, max_in_flight=[1]), "or 2 for 2 ranks; got 1"),
        (lambda: run("1F1B", 3, 4, pl.StageCosts([1, 2], 1, 1)), "or 3 for 3 stages; got 2"),
        (lambda: run("1F1B", 3, 4, pl.StageCosts(1)), "= None: 1F1B runs backwards: expected"),
        (lambda: run("1F1B", 3, 4, transfers="bufered"), "did you mean 'buffered'"),
        (lambda: run("GPipe", 4, 1).memory(5), "rank = 5: expected at most 3"),
        (lambda: pl.simulate(pl.Schedule.of("mine", [["0F0"], ["1F0", "1B0"]]), ONE), "0B0 is mis"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, message):
    with pytest.raises(pl.PipelabError, match=message):
        call()
