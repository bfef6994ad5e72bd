"""Exercises: each has a computed target, a wrong answer is told what is off, and nothing right is called wrong."""

import ast
import itertools
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import pipelab as pl
from pipelab.course import n04, n07, n08, n18, plain_answers
from pipelab.course.checks import EXERCISES
from pipelab.course.exercises import Function, Given, Number
from pipelab.course.scored_labs import Lab

NUMBERS = {name: exercise for name, exercise in EXERCISES.items() if isinstance(exercise, Number)}


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", EXERCISES)
def test_hints_come_one_at_a_time_and_none_gives_the_answer(name):
    hints = EXERCISES[name].hints()
    assert len(set(hints)) == len(hints) >= 1
    for place, says in enumerate(hints, start=1):
        shown = str(pl.course.hint(name, place))
        assert shown == f"exercise {name}, hint {place} of {len(hints)}: {says}"
    if name in NUMBERS:
        assert f"{NUMBERS[name].target():,.4g}" not in " ".join(hints)
    for wrong in (0, len(hints) + 1):
        with pytest.raises(pl.errors.InvalidValue, match=f"expected 1 to {len(hints)}"):
            pl.course.hint(name, wrong)


@pytest.mark.parametrize(
    "name", [name for name, one in EXERCISES.items() if getattr(one, "signature", "") and one.hint]
)
def test_a_mistake_in_the_code_has_no_hint_about_the_input(name):
    for mistake in (lambda: 1, lambda *given: given.nothing, lambda *given: nothing):  # noqa: F821
        assert "Hint" not in EXERCISES[name].seen(mistake).says


def test_a_hint_of_a_function_names_the_smallest_input_that_it_is_about():
    said, inputs = str(pl.course.hint("01.2", 2)), EXERCISES["01.2"].inputs()
    smallest = next(x for x in inputs if "too slow" in EXERCISES["01.2"].hint(x))
    assert f"for {smallest}: here a layer is too slow for one of the GPUs" in said
    sizes = [len(x.costs) + len(x.speeds) for x in inputs]
    assert sizes == sorted(sizes)


def test_what_is_not_attempted_and_what_is_none():
    """None is an answer in 04.1: the heuristic names no placement there."""
    for name, value in (("04.1", ...), ("00.1", ...), ("00.1", None), ("05.3", None)):
        said = f'exercise {name}: not attempted yet; course.hint("{name}") gives a hint'
        assert str(pl.course.check(name, value)) == said
    said = str(pl.course.check("04.1", None))
    assert said.startswith(
        "exercise 04.1: not yet. Yours is None. Hint: the heuristic names no GPU"
    )
    for asked in (pl.course.hint, lambda name: pl.course.check(name, 1)):
        with pytest.raises(pl.errors.UnknownName, match=r"there is no exercise '05\.9'"):
            asked("05.9")


# Numbers


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_right_or_told_its_mistake_without_the_answer(name):
    """Every mistake has a number and a sentence of its own; of others, one 4 % further away is told the same."""
    exercise, target = NUMBERS[name], NUMBERS[name].target()
    assert math.isfinite(target)
    assert str(pl.course.check(name, target)).startswith(f"exercise {name}: right, ")
    assert exercise.half or exercise.mistakes
    for points, mistakes in ((0.5, exercise.half), (0, exercise.mistakes)):
        for says, value in mistakes.items():
            earned, said = exercise.grade(value())
            assert earned == points
            assert said.endswith(f"Hint: {says}")
    plain = replace(exercise, target=lambda: target, half={}, mistakes={})
    for factor in (0.3, 0.99, 1.01, 3.3):
        how = "too high" if factor > 1 else "too low"
        assert f", {how}. Hint: " in plain.grade(target * factor)[1]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (40_000, "too high. Hint: it is 1,000 times the answer: look at the"),
        (0.4, "too low. Hint: it is a hundredth of the answer: per cent, or"),
        (52, "Yours is 52 layers, too high. Hint: count them"),
        (float("nan"), "Expected a finite number, yours is nan"),
        (10**400, "Expected a finite number, yours has too many digits"),
        ("40 layers", "Expected a number, without unit and commas, yours is '40 layers'"),
    ],
)
def test_common_slips_are_named(value, says):
    exercise = Number(target=lambda: 40.0, unit="layers", hint="count them")
    assert exercise.grade(40.003) == (True, "40.003 layers")
    right, why = exercise.grade(value)
    assert not right
    assert says in why


def test_an_answer_rounded_too_far_is_told_so_and_a_count_is_exact():
    exercise = Number(target=lambda: 190.5972, unit="tokens/s", hint="take the largest")
    assert exercise.grade(190.6)[0]
    assert "Hint: it is the answer, rounded too far: give one" in exercise.grade(191)[1]
    assert exercise.grade(192)[1].endswith("Hint: take the largest")
    # rounded down the heaviest layer is right; rounded up, the count has fallen already
    assert str(pl.course.check("13.2", 2.059)).startswith("exercise 13.2: right, ")
    assert "rounded too far" in str(pl.course.check("13.2", 2.06))
    assert (
        str(pl.course.check("02.2", 173966763.0)) == "exercise 02.2: right, 173,966,763 placements"
    )
    assert "Yours is 173,966,764 placements, " in str(pl.course.check("02.2", 173966764))


def test_a_mistake_that_happens_to_be_right_is_right():
    wrong = {"no": lambda: 40.0, "never": lambda: 1 / 0}
    exercise = Number(target=lambda: 40.0, hint="count them", mistakes=wrong)
    assert exercise.grade(40) == (True, "40")


def test_no_target_is_typed_in():
    """A target is a call, or made of calls; never a number."""
    for path in Path(n04.__file__).parent.glob("n[01]?.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Number":
                target = next(word.value for word in call.keywords if word.arg == "target")
                assert isinstance(target, ast.Name) or any(
                    isinstance(part, ast.Call) for part in ast.walk(target.body)
                )


@pytest.mark.slow
def test_links_slower_than_the_answer_are_of_no_use_and_break_their_m():
    """05.1 and 05.2 compute their answers by a short cut; solving on both sides of it agrees."""
    gbps, factor = EXERCISES["05.1"].target(), EXERCISES["05.2"].target()
    used = [
        len(pl.solve(pl.course.seven_gpus(gbps=(10, share * gbps, 0.1))).placement)
        for share in (1.001, 0.999)
    ]
    assert used == [3, 2]
    problem = pl.course.seven_gpus()
    margin = 1.1 * problem.link_throughput(problem.cluster.bandwidth_between(0, 1))
    for share, breaks in ((0.999, False), (1.001, True)):
        slower = replace(problem, cluster=problem.cluster.scaled_bandwidth(1 / (share * factor)))
        assert (margin / (share * factor) < pl.solve(slower).throughput) == breaks


@pytest.mark.slow
def test_the_orders_that_a_count_accepts_hardly_ever_run():
    """Against the simulator, which refuses the others."""

    def runs(rows):
        try:
            order = pl.Schedule.of("", [[f"{r}{a}" for a in row] for r, row in enumerate(rows)])
            pl.simulate(order, pl.StageCosts(1, 1, 1))
        except pl.errors.InvalidSchedule:
            return False
        return True

    rows = list(itertools.permutations(("F0", "F1", "B0", "B1")))
    assert sum(map(runs, itertools.product(rows, repeat=2))) == EXERCISES["14.3"].target() == 26


# What is found


def test_a_schedule_may_be_half_right():
    tried = pl.schedule("1F1B", 4, 8), pl.schedule("GPipe", 4, 8)
    assert [EXERCISES["08.2"].grade(one)[0] for one in tried] == [0.5, 0]


# Functions: right ones, which a reader may get wrong by their other arguments


def _rate(parts, head=1.1, reserved=2, skip=True):
    """Tokens/s of these cuts as a reader may write it."""
    problem = pl.course.three_sites()
    gpus, ms = problem.cluster.gpus, problem.costs.ms_per_layer
    used = [(n, g) for n, g in parts if n]
    for i, (n, g) in enumerate(used):
        more = ((i == 0) + (i == len(used) - 1)) * 1.23
        if 1.71 * (n + more) + reserved > gpus[g].memory_gb:
            return 0
    stages = [ms[gpus[g].type] * n for n, g in used]
    stages[-1] += (head - 1) * ms[gpus[used[-1][1]].type]
    line = [g for _, g in (used if skip else parts)]
    bandwidth = problem.cluster.bandwidth_between
    links = [2048 * 8192 * 2 / 1e6 / bandwidth(a, b) for a, b in itertools.pairwise(line)]
    return 2048000 / max(stages + links)


def _reach(costs, speeds, ms, skip=True, at=True):
    """Layers within the limit as a reader may count them."""
    done = 0
    for speed in speeds:
        held = 0
        while done < len(costs) and (held + costs[done] < ms * speed + (1e-9 if at else 0)):
            held += costs[done]
            done += 1
        if not held and not skip:
            return done
    return done


def _split(costs, speeds, empty=True, worst=max, limit=math.inf):
    """The recurrence with GPUs left out."""
    best = [0] + [limit] * len(costs)
    for speed in speeds:
        best = [
            min((worst(best[i], sum(costs[i:j]) / speed) for i in range(j + empty)), default=limit)
            for j in range(len(costs) + 1)
        ]
    return best[-1]


def _placements(layers, kinds, idle=True, apart=False):
    """How many, by making all of them."""
    types = [kind for kind, number in enumerate(kinds) for _ in range(number)]
    total = 0
    for stages in range(1 if idle else len(types), len(types) + 1):
        orders = list(itertools.permutations(types, stages))
        total += (len(orders) if apart else len(set(orders))) * math.comb(layers - 1, stages - 1)
    return total


def _no_rings(big_m=None, grow=True):
    """Rows of 03.1 as a reader may write them."""

    def family(scip, v, d):
        for g, h in d.link:
            m = d.layers if big_m is None else big_m
            scip.addCons(v.done[h] >= v.done[g] + grow * v.n[h] - m * (1 - v.x[g, h]))

    return family


def _best_of_orders(stages, links, worst=max, as_given=False):
    """The smallest bottleneck over all orders."""
    found = []
    for order in [stages] if as_given else itertools.permutations(stages):
        sites = [site for site, _ in order]
        times = [links[pair] for pair in itertools.pairwise(sites)]
        found.append(worst([ms for _, ms in order] + times))
    return min(found)


def _linked(z, e, connections, forced=-1):
    """A link is on where both its ends are chosen."""
    return [e[i] >= z[c.sender] + z[c.receiver] + forced for i, c in enumerate(connections)]


def _refutes(prices, stages, counts, layers, sign=True, rows=True, strict=True):
    """Whether prices are a proof."""
    covered = all(most <= sum(prices[k] for k in gpus) for gpus, most in stages)
    total = sum(n * u for n, u in zip(counts, prices, strict=True))
    short = total < layers if strict else total <= layers
    return (min(prices) >= 0 or not sign) and (covered or not rows) and short


def _gpipe_end(forward, backward, message, m, links=True, drain=True):
    """When GPipe ends."""
    hops = (len(forward) - 1) * message * 2 * links
    if not drain:
        return m * (max(forward) + max(backward)) + hops
    slowest = max(forward) + max(backward)
    return sum(forward) + sum(backward) + (m - 1) * slowest + hops


def _in_turns(m, ahead):
    turns = [(i, kind, i - ahead * (kind == "B")) for i in range(m + ahead) for kind in "FB"]
    return [f"{kind}{i}" for _, kind, i in turns if 0 <= i < m]


def _within_room(rank, m, room, before=True, rooms=True):
    """1F1B with a shorter lead."""
    least = min(room[: rank + 1] if before else room[rank : rank + 1])
    ahead = len(room) - 1 - rank
    return _in_turns(m, min(m, ahead, least - 1 if rooms else ahead))


def _put_off(row, share, room, early=False, late=False, newest=False):
    """Weight gradients as late as there is room for."""
    done, waiting, held = [], [], 0
    for action in row:
        while action[0] == "F" and waiting and held + 1 > room and not late:
            done.append("W" + waiting.pop(-1 if newest else 0))
            held -= share
        held += 1 if action[0] == "F" else share - 1
        done.append(action)
        if action[0] == "I" and early:
            done.append("W" + action[1:])
            held -= share
        elif action[0] == "I":
            waiting.append(action[1:])
    return done + ["W" + i for i in waiting]


def _crossing(weights, cache, flops, B, F, kept=True, least=1, never=math.inf):
    """From how many sequences on."""
    gain = flops / F - kept * cache / B
    return max(least, math.ceil(weights / B / gain)) if gain > 0 else never


def _factor(rows, unsure, prior=True, logs=True):
    """The factor for all predictions."""
    if not logs:
        return sum(measured / predicted for predicted, measured in rows) / len(rows)
    total = sum(math.log(measured / predicted) for predicted, measured in rows)
    return math.exp(total * 100 / (len(rows) * 100 + prior / unsure**2))


def _in_flight(times, up=True, worst=max):
    """Little's number."""
    return math.ceil(sum(times) / worst(times)) if up else sum(times) // worst(times)


def _answer_seconds(prefill, decode, tokens, n, first=1, turns=True):
    """Prefill, then a round per token."""
    each = max(sum(decode), n * max(decode) if turns else 0)
    return sum(prefill) + (tokens - first) * each


def _divided(rates, gpus, several=True, greedy=False):
    """Every division of so many GPUs."""
    if not several:
        return rates[min(gpus, len(rates)) - 1]
    sizes = range(1, min(gpus, len(rates)) + 1)
    if greedy:
        size = max(sizes, key=lambda n: rates[n - 1] / n)
        return rates[size - 1] + (_divided(rates, gpus - size, greedy=True) if gpus > size else 0)
    return max((rates[n - 1] + _divided(rates, gpus - n) for n in sizes), default=0)


def _at_most(pipelines, prices, gpus, raised=True, best=max):
    """What all GPUs cost at the right prices."""

    def cost(mix):
        return sum(n * price for n, price in zip(mix, prices, strict=True))

    return cost(gpus) * (best(rate / cost(mix) for mix, rate in pipelines) if raised else 1)


def _recomputed_layers(layers, whole, kept, held, room, once=True):
    """From the room that is missing."""
    missing = held * layers * whole - room
    if missing <= 0:
        return 0
    n = math.ceil((missing + whole * once) / (held * (whole - kept)))
    return n if n <= layers else math.inf


def _mfu(layers, tflop, m, seconds, peak, again, backward=2, twice=False):
    """Model FLOPs over the peak."""
    forwards = layers * m * (1 + backward) + twice * again * m
    return forwards * tflop / seconds / peak


def _understated(stages, links, gb, tokens, own=True):
    """True rate over claimed one."""
    true = min([*stages, *(tokens * x / gb for x in links)])
    claimed = min([*(stages if own or not links else ()), *(x / gb for x in links)])
    return true / claimed


def _fits(order, stalls=True):
    """Whether an order runs and holds little."""
    p, done, rows = order.ranks, set(), [list(row) for row in order.actions]
    for r, row in enumerate(rows):
        held = itertools.accumulate(1 if step.kind == "F" else -1 for step in row)
        if max(held) > p - r:
            return False
    while stalls and any(rows):
        able = [
            row
            for row in rows
            if row
            and all(
                need in done
                for need in (
                    [("F", row[0].stage - 1, row[0].microbatch)] * (row[0].stage > 0)
                    if row[0].kind == "F"
                    else [
                        ("F", row[0].stage, row[0].microbatch),
                        *[("B", row[0].stage + 1, row[0].microbatch)] * (row[0].stage < p - 1),
                    ]
                )
            )
        ]
        if not able:
            return False
        done |= {(a.kind, a.stage, a.microbatch) for a in (row.pop(0) for row in able)}
    return True


def _by_flops(costs, stages, repaired=True):
    """The published rule, where it panics too short; or repaired."""
    share, sizes, load = -(-sum(costs) // stages), [0], 0
    for i, cost in enumerate(costs):
        sizes[-1] += 1
        load += cost
        left, to_open = len(costs) - i - 1, stages - len(sizes)
        if to_open and left >= to_open and (load >= share or (repaired and left == to_open)):
            sizes.append(0)
            load = 0
    return sizes


def _even(costs, stages):
    return [len(part) for part in pl.splits.split_even(len(costs), stages)]


def _circle(waits, tail=False):
    """Who is still under way after as many steps as there are ranks is on a circle."""
    for rank in range(len(waits)):
        at = rank
        for _ in waits:
            at = None if at is None else waits[at]
        if at is not None:
            found = {at}
            while (at := waits[at]) not in found:
                found.add(at)
            led = [r for r, other in enumerate(waits) if other in found]
            return sorted(found | {*led} if tail else found)
    return []


def _least_layer(spans, rates, layers, held_only=False):
    passed = [0] * layers
    for (first, last), rate in zip(spans, rates, strict=True):
        for layer in range(first, last + 1):
            passed[layer - 1] += rate
    return min(filter(None, passed)) if held_only else min(passed)


def _memory_for(ways, stage, tokens, whole=True, shared=False):
    kept = 0
    for way, rate, seconds in ways:
        if stage in way:
            kept += rate * seconds / (len(way) if shared else 1)
    return -(-kept // tokens) if whole else kept / tokens


def _fewest_dollars(pipelines, load, best_only=False, whole=True):
    """One pipeline, and the rest."""
    dollars, rate = min(pipelines, key=lambda pipeline: pipeline[0] / pipeline[1])
    if not whole:
        return dollars * load / rate
    if best_only:
        return dollars * math.ceil(load / rate)
    if load <= 0:
        return 0
    return min(
        dollars * n + (_fewest_dollars(rest, load - rate * n) if load > rate * n else 0)
        for (dollars, rate), *rest in (pipelines[k:] for k in range(len(pipelines)))
        for n in range(1 if rest else math.ceil(load / rate), math.ceil(load / rate) + 1)
    )


def _best_rate(reads, each, promise, room, most=math.inf, patient=False):
    """All batches and numbers in flight."""
    best = 0
    for b, m in itertools.product(range(1, room + 1), repeat=2):
        times = [read + b * more for read, more in zip(reads, each, strict=True)]
        end = max(sum(times), m * max(times))
        if b * m <= room and m <= most and (patient or end <= promise):
            best = max(best, b * m / end)
    return best


def _order_of(rooms, m, few=True):
    """The GPU with most room first."""
    order = sorted(range(len(rooms)), key=lambda g: -rooms[g])
    holds = [min(m if few else m + len(rooms), len(rooms) - rank) for rank in range(len(rooms))]
    return order if all(rooms[g] >= n for g, n in zip(order, holds, strict=True)) else None


def _simulations(bounds, steps, ordered=True, equal=False):
    """How many are below the best step of those before them."""
    pairs = list(zip(bounds, steps, strict=True))
    if ordered:
        pairs.sort()
    for n, (bound, _) in enumerate(pairs):
        before = [step for _, step in pairs[:n]]
        if before and (bound > min(before) if equal else bound >= min(before)):
            return n
    return len(pairs)


def _copies_needed(parameters, kept, room, stage, never=math.inf, all_shared=False):
    """Counted up."""
    shared = (0, 12, 16, 18)[3 if all_shared else stage]
    for n in range(1, 5_000):
        if kept * n + parameters * ((18 - shared) * n + shared) <= room * n:
            return n
    return never


def _zero_3(nodes, each, weights, microbatches, inside, between, part=True, once=False):
    """GB that a GPU sends inside and between."""
    gb = microbatches * weights * (3 if once else 4)
    across = gb / each if part else gb
    return (gb - gb / each) / inside + (across - across / nodes) / between


# Right, half right, and worth nothing: other arguments, or another function. (15.2 is in test_lab15.py.)
ANSWERS = {
    "00.2": (_rate, [{"skip": False}, {"reserved": 0}], {"head": 1}),
    "01.2": (_reach, [{"at": False}, {"skip": False}], lambda costs, speeds, ms: 0),
    "01.3": (_split, [{"empty": False}], {"worst": lambda a, b: a + b}),
    "02.1": (_placements, [{"idle": False}], {"apart": True}),
    "03.1": (_no_rings(), [_no_rings(big_m=2)], _no_rings(grow=False)),
    "04.2": (_best_of_orders, [{"as_given": True}], {"worst": sum}),
    "05.3": (_linked, [{"forced": 0}], {"forced": -2}),
    "06.1": (_refutes, [{"sign": False}, {"strict": False}], {"rows": False}),
    "07.1": (_gpipe_end, [{"links": False}], {"drain": False}),
    "07.2": (_within_room, [{"before": False}], {"rooms": False}),
    "08.1": (_put_off, [{"early": True}, {"newest": True}], {"late": True}),
    "09.1": (_crossing, [{"never": 0}], {"kept": False}),
    "09.2": (_factor, [{"prior": False}], {"logs": False}),
    "10.1": (_in_flight, [{"up": False}, lambda times: sum(times) / max(times)], {"worst": min}),
    "10.2": (_answer_seconds, [{"first": 0}], {"turns": False}),
    "11.1": (_divided, [{"greedy": True}], {"several": False}),
    "11.2": (_at_most, [{"best": min}], {"raised": False}),
    "12.1": (_recomputed_layers, [{"once": False}], lambda layers, *_: layers),
    "12.2": (_mfu, [{"twice": True}], {"backward": 1}),
    "13.1": (_understated, [{"own": False}], lambda *_: 1),
    "14.1": (_fits, [{"stalls": False}], lambda order: True),
    "14.2": (_by_flops, [_even], {"repaired": False}),
    "15.1": (_circle, [{"tail": True}], lambda waits: []),
    "16.1": (_least_layer, [{"held_only": True}], lambda spans, rates, layers: min(rates)),
    "16.2": (_memory_for, [{"whole": False}], {"shared": True}),
    "17.1": (_fewest_dollars, [{"best_only": True}], {"whole": False}),
    "17.2": (_best_rate, [{"most": 1}], {"patient": True}),
    "18.1": (_order_of, [{"few": False}], lambda rooms, m: [*range(len(rooms))]),
    "18.2": (_simulations, [{"equal": True}], {"ordered": False}),
    "19.1": (_copies_needed, [{"never": 0}], {"all_shared": True}),
    "19.2": (_zero_3, [{"once": True}], {"part": False}),
}


def _slips(name):
    """Wrong functions, and what they earn."""
    right, halves, wrong = ANSWERS[name]
    for points, slip in [*((0.5, half) for half in halves), (0, wrong)]:
        yield points, slip if callable(slip) else partial(right, **slip)


def test_every_function_is_here():
    named = {n for n, x in EXERCISES.items() if isinstance(x, Function) and not isinstance(x, Lab)}
    assert named - {"15.2"} == set(ANSWERS)
    undrawn = {name for name in named if not EXERCISES[name].picture}
    assert undrawn == {"09.2", "10.2", "12.2", "13.1", "14.1", "14.2", "15.1", "15.2"}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_function_is_right_or_shown_the_smallest_input_and_has_half_a_point_by_the_rubric(name):
    exercise, inputs = EXERCISES[name], EXERCISES[name].inputs()
    does = "agrees" if exercise.target else "keeps the rule"
    said = f"exercise {name}: right, it {does} on all {len(inputs)} inputs"
    assert str(pl.course.check(name, ANSWERS[name][0])) == said
    if exercise.hint:
        assert len({exercise.hint(x) for x in inputs}) >= 2
    for points, mine in _slips(name):
        earned, why = exercise.grade(mine)
        assert earned == points
        answer, failure = pl.course.check(name, mine), exercise.smallest_failure(mine)
        assert str(answer) == f"exercise {name}: not yet. {why[0].upper()}{why[1:]}"
        assert why.startswith(f"on {failure.given} yours ") or name == "18.1"
        assert answer.figure == (exercise.picture(failure) if exercise.picture else None)
        if exercise.target and not exercise.off:
            assert failure.given == next(
                given
                for given in inputs
                if not math.isclose(
                    exercise.call(mine, given), exercise.target(given), rel_tol=1e-6
                )
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_hidden_inputs_come_to_those_of_the_notebook(name):
    shown, others = EXERCISES[name].inputs(), EXERCISES[name].inputs(1)
    assert all(given in others for given in shown)
    assert sum(given not in shown for given in others) >= 38


@pytest.mark.nightly
@pytest.mark.parametrize("name", ANSWERS)
def test_verdicts_stay_with_hidden_inputs(name):
    hidden = replace(EXERCISES[name], inputs=partial(EXERCISES[name].inputs, 1))
    assert hidden.grade(ANSWERS[name][0])[0] == 1
    for points, mine in _slips(name):
        assert hidden.grade(mine)[0] == points


@pytest.mark.parametrize(
    ("name", "mine", "why"),
    [
        ("00.2", 3, "expected the function itself, as `def rate(cuts):` makes it; yours is 3"),
        ("00.2", lambda: 1, "yours gives TypeError: "),
        ("14.2", partial(_by_flops, repaired=False), "yours gives [2]: that is 1 of 2 stages"),
        ("14.2", lambda c, s: [1] * s, "yours gives [1]: that is 1 of 2 layers"),
        ("07.2", partial(_within_room, before=False), "cannot be run: deadlock"),
        ("07.2", partial(_within_room, rooms=False), "microbatches and has room for"),
        ("07.2", lambda r, m, room: ["F0"], "rank 0 lacks B0"),
        ("07.2", lambda r, m, room: ["F0", "B0", "W0"], "rank 0 has 'W0', which it should not"),
        ("08.1", partial(_put_off, early=True), "could wait: "),
        ("08.1", lambda row, *_: ["W0", *_put_off(row, 1, 9)[:-1]], "W0 comes before I0"),
        ("08.1", lambda row, *_: sorted(_put_off(row, 0, 9)), "no longer in the given order"),
        ("18.1", lambda *x: None, "it says that no order fits, and one does"),
        ("18.1", lambda rooms, m: [0], "it is no order of the GPUs 0 to 1"),
    ],
)
def test_what_is_wrong_is_told(name, mine, why):
    assert why in EXERCISES[name].grade(mine)[1]


def test_answers_may_be_tuples_and_arguments_may_be_changed():
    def changes_its_argument(cuts):
        answer = _rate(cuts)
        cuts.clear()
        return answer

    assert EXERCISES["00.2"].grade(changes_its_argument)[0] == 1
    assert EXERCISES["14.2"].grade(lambda *x: tuple(_by_flops(*x)))[0] == 1


def test_half_points_are_for_failures_that_are_all_half_right_and_of_the_kind():
    one = Function(
        signature="f(x)",
        inputs=lambda _=0: [Given(x=1), Given(x=2)],
        target=lambda given: given.x,
        half=lambda given, answer: answer + given.x == 1,
    )
    assert [one.grade(f)[0] for f in (lambda x: 1 - x, lambda x: 0, lambda x: "")] == [0.5, 0, 0]


def _orders(m, most, row=()):
    """Every order of full backwards on a rank that may hold so many microbatches."""
    done, back = (sum(action[0] == kind for action in row) for kind in "FB")
    if back == m:
        yield row
    if done < min(m, back + most):
        yield from _orders(m, most, (*row, f"F{done}"))
    if back < done:
        yield from _orders(m, most, (*row, f"B{back}"))


@pytest.mark.parametrize(("m", "room"), [(2, (1, 2, 1)), (2, (2, 1)), (3, (2, 3)), (3, (2, 2, 1))])
def test_on_small_inputs_no_order_within_the_memory_is_faster(m, room):
    """By trying all; a larger input has a faster one, as 07's solutions say."""
    off = EXERCISES["07.2"].off
    given = Given(m=m, room=list(room))
    mine = [_within_room(rank, m, list(room)) for rank in range(len(room))]
    assert off(given, mine) == ""
    all_orders = itertools.product(*(list(map(list, _orders(m, most))) for most in room))
    ends = {n07.run_rows(rows, m).makespan for rows in all_orders if not off(given, list(rows))}
    assert ends == {n07.run_rows(mine, m).makespan}


def test_what_1f1b_holds_is_what_the_simulator_says():
    """The needs of exercise 18.1, and the peak of 12.1 with nothing recomputed."""
    for given in EXERCISES["18.1"].inputs()[::10]:
        timeline = pl.simulate(
            pl.schedule("1F1B", len(given.rooms), given.m), pl.StageCosts(1, 1, 1)
        )
        assert list(timeline.peak_in_flight) == n18.held_by_1f1b(given)


def test_littles_number_is_what_the_timeline_needs():
    """On stages alone, of whole seconds: one layer each, on GPUs of different speeds."""
    for given in EXERCISES["10.1"].inputs()[::25]:
        kinds = [f"G{g}" for g in range(len(given.times))]
        gpus = pl.Cluster.from_counts(dict.fromkeys(kinds, 1), dict.fromkeys(kinds, 80), 1e15)
        times = {kind: 1000 * ms for kind, ms in zip(kinds, given.times, strict=True)}
        model = pl.Model("m", len(kinds), 1024, 1024, 1.0)
        load = pl.Workload(128, 1, "decode")
        problem = pl.Problem(gpus, model, load, pl.LayerTimes(times))
        plan = pl.Placement.of([(1, (g,)) for g in range(len(kinds))])
        assert pl.timeline_of(problem, plan).in_flight_needed == EXERCISES["10.1"].target(given)


def test_what_is_held_in_a_row_is_what_the_simulator_says():
    for given in EXERCISES["08.1"].inputs()[::5]:
        row = [[f"0{action}" for action in _put_off(*given)]]
        costs = pl.StageCosts(1, 1, 1, weight_activation=given.share)
        (peak,) = pl.simulate(pl.Schedule.of("", row), costs).peak_memory
        assert peak == max(n08._held([a[1:] for a in row[0]], given.share)) <= given.room


# Pictures


def test_a_figure_is_shown_below_the_words(monkeypatch):
    answer, shown = pl.course.check("00.2", lambda cuts: 0.0), []
    monkeypatch.setattr("IPython.display.display", lambda *what: shown.extend(what))
    answer._ipython_display_()
    assert [shown[0].data, *shown[1:]] == [answer.html, answer.figure]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", [name for name in ANSWERS if EXERCISES[name].picture])
def test_what_raises_is_drawn_too_and_no_input_is_too_odd_to_draw(name):
    """Without an answer, the picture is of the right one."""
    puzzle = EXERCISES[name]
    failure = puzzle.smallest_failure(lambda *given: 1 / 0)
    assert "ZeroDivisionError" in failure.says
    for given in puzzle.inputs()[::59]:
        title = puzzle.picture(failure._replace(given=given)).layout.title.text
        assert "None" not in title
        assert "yours" not in title


FUNCTIONS = sorted(name for name, one in EXERCISES.items() if isinstance(one, Function))
NEVER = [-1], [0, -1], [1e-9, 1e-8], [1e300, 2e300], [math.inf], [-math.inf, 0], [True], [[]]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(FUNCTIONS)))
def test_no_function_earns_a_point_with_values_that_no_program_gives(case):
    """As a kernel may say that was changed in memory; `grade` believes of it the values alone."""
    name = FUNCTIONS[case]
    for values in NEVER:
        answers = [
            {"answer": v}
            for _, v in zip(EXERCISES[name].inputs(), itertools.cycle(values), strict=False)
        ]
        assert plain_answers.checked(name, json.dumps({"returned": answers}))[0] == 0
