"""Questions to a reader: predict first, then look; and exercises that check themselves."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, cast

from pipelab.checked import given
from pipelab.errors import UnknownName, nearest
from pipelab.problem import Model

if TYPE_CHECKING:
    from pipelab.problem import Problem
    from pipelab.timeline.costs import StageCosts

__all__ = ["EXERCISES", "Answer", "Contest", "Exercise", "check", "guess"]


@dataclass(frozen=True)
class Answer:
    """Something to show under a cell, in a notebook or a terminal."""

    text: str
    html: str

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def guess(question: str, answer: object) -> Answer:
    """A question whose answer stays folded until the reader opens it, by mouse or keyboard.

    >>> print(guess("How many stages?", 1))
    How many stages? (answer: 1)
    """
    folded = (
        f"<details style='margin:4px 0'><summary style='cursor:pointer'><b>Predict:</b> {escape(question)} "
        f"<i>(open for the answer)</i></summary><p style='margin-left:1.2em'>{escape(str(answer))}</p></details>"
    )
    return Answer(f"{question} (answer: {answer})", folded)


@dataclass(frozen=True)
class Exercise:
    """What a reader is asked to find: how the target is computed, its unit, a hint."""

    target: Callable[[], float]
    unit: str
    hint: str
    rel: float = 1e-4  # relative tolerance


def _tiny(**options: Any) -> "Problem":
    from pipelab.data import load_case

    return load_case("tiny", **{"max_gpus_per_stage": 2, **options})


def _four_gpus_per_stage() -> float:
    from pipelab.solve import solve

    return given(solve(_tiny(max_gpus_per_stage=4), "joint").throughput)


def _slowdown() -> float:
    from pipelab.formulations.candidates import enumerate_candidates
    from pipelab.formulations.joint import MARGIN

    candidates = enumerate_candidates(_tiny())
    return MARGIN * candidates.link_throughput.max() / candidates.throughput.max()


def _heaviest_layer() -> float:
    tiny = _tiny()
    activations = tiny.costs.activation_gb(tiny.model, tiny.workload)
    return (tiny.cluster.gpus[0].memory_gb - activations / 2) / tiny.model.layers


def _smallest_bottleneck() -> float:
    from pipelab.splits import bottleneck, split_minmax

    costs = [6, 2, 2, 2, 8, 1, 1, 2]
    return bottleneck(given(split_minmax(costs, 3)), costs)


def _placements_of_small() -> float:
    from pipelab.data import load_case
    from pipelab.methods.exhaustive import count_placements

    return sum(count_placements(load_case("small")).values())


def _layers_above_the_bound() -> float:
    import numpy as np

    from pipelab.data import load_case
    from pipelab.formulations.single_gpu import rules, upper_bound

    chosen = rules(load_case("medium"))
    fast = chosen.fits & (chosen.rate > upper_bound(chosen))
    return float(np.where(fast, np.arange(1, fast.shape[1] + 1), 0).max(axis=1).sum())


def _promise_for_small() -> float:
    from pipelab.data import load_case
    from pipelab.solve import solve

    return solve(load_case("small", max_gpus_per_stage=4), "type_count").details["promised"]


def _left_over_on_medium() -> float:
    from pipelab.data import load_case
    from pipelab.methods.certificate import certificate
    from pipelab.solve import solve

    return certificate(solve(load_case("medium"), "aggregated")).left_over or 0


def _fewest_gpus_of_a_heavy_demo() -> float:
    from dataclasses import replace

    from pipelab.data import load_case
    from pipelab.solve import solve

    demo = load_case("demo", max_gpus_per_stage=3)
    heavy = replace(demo, model=replace(cast(Model, demo.model), layer_weight_gb=8))
    return len(given(solve(heavy, "aggregated").placement).gpus)


def _message_that_costs_zbh1_its_lead() -> float:
    """By bisection: ZB-H1 loses time with every unit of `comm` and GPipe less."""
    from pipelab.schedules import schedule
    from pipelab.timeline import StageCosts, simulate

    one, other = schedule("ZBH1", 4, 8), schedule("GPipe", 4, 8)
    low, high = 0.0, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        costs = StageCosts(1, 1, 1, comm=middle)
        ahead = simulate(one, costs).makespan < simulate(other, costs).makespan
        low, high = (middle, high) if ahead else (low, middle)
    return low


def _sequences_for_twice_the_time() -> float:
    from pipelab.cluster import GPU
    from pipelab.facts import load_model
    from pipelab.problem import Workload
    from pipelab.roofline import Roofline

    def seconds(b: int) -> float:
        gpu, load = GPU("A100-SXM-40", 40), Workload(2048, b, "decode")
        return Roofline().pass_seconds(load_model("Llama-3-70B"), load, gpu, range(1, 2))

    return next(b for b in range(1, 10_000) if seconds(b) >= 2 * seconds(1))


def _cheapest_tokens_in_fp8() -> float:
    from pipelab.facts import load_cluster, load_model
    from pipelab.methods.trade_off import price_per_hour, trade_off
    from pipelab.problem import Problem, Workload
    from pipelab.roofline import Roofline

    llama, load = load_model("Llama-3-70B", precision="fp8"), Workload(2048, 16, "decode", in_flight=20)
    problem = Problem(load_cluster("helix-single24"), llama, load, Roofline(), link_units="tokens")
    points = [p for p in trade_off(problem, "usd_per_hour").points if given(p.throughput) >= 1200]
    return min(given(price_per_hour(problem, p)) / (3600 * given(p.throughput)) for p in points) * 1e6


def _heaviest_layer_of_the_demo() -> float:
    """By bisection: the count of allocations falls with the weight of a layer."""
    from dataclasses import replace

    from pipelab.data import load_case
    from pipelab.formulations.count import count_candidates

    demo = load_case("demo", max_gpus_per_stage=3)

    def allocations(weight: float) -> int:
        heavy = replace(cast(Model, demo.model), layer_weight_gb=weight)
        return count_candidates(replace(demo, model=heavy))["allocations"]

    low, high, as_bundled = demo.model.layer_weight_gb, 3.0, allocations(demo.model.layer_weight_gb)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if allocations(middle) == as_bundled else (low, middle)
    return low


def _sequences_for_400() -> float:
    from pipelab.data import load_case

    demo = load_case("demo")
    first, second = (demo.costs.gpu_throughput("A10", demo.workload, b, demo.model.layers) for b in (100, 101))
    return float(100 + (400 - first) / (second - first))


@dataclass(frozen=True)
class Contest:
    """A schedule to beat: on these stages, with so much memory for activations on every rank."""

    rival: str
    microbatches: int
    times: tuple[float, ...]  # F = B = W of every stage
    memory: tuple[float, ...]
    weight_activation: float = 0.5

    def costs(self) -> "StageCosts":
        """The stages as costs."""
        from pipelab.timeline import StageCosts

        return StageCosts(self.times, self.times, self.times, weight_activation=self.weight_activation)

    def judge(self, mine: Any) -> tuple[bool, str]:
        """Whether `mine` wins, and a sentence that says why or why not."""
        from pipelab.bounds import lower_bound
        from pipelab.errors import InvalidSchedule
        from pipelab.schedules import Schedule, schedule
        from pipelab.timeline import simulate

        ranks, costs = len(self.times), self.costs()
        if not isinstance(mine, Schedule):
            return False, f"expected a schedule, yours is {mine!r}"
        if (mine.microbatches, mine.stage_rank) != (self.microbatches, tuple(range(ranks))) or mine.forward_only:
            expected = f"{self.microbatches} microbatches forward and back, stage s on rank s of {ranks}"
            return False, f"expected {expected}"
        try:
            timeline = simulate(mine, costs)
        except InvalidSchedule as error:
            return False, str(error)
        for rank, (held, most) in enumerate(zip(timeline.peak_memory, self.memory, strict=True)):
            if held > most + 1e-9:
                return False, f"rank {rank} holds {held:g} at its peak and has room for {most:g}"
        end = timeline.makespan
        rival = simulate(schedule(self.rival, ranks, self.microbatches), costs).makespan
        bound = lower_bound(ranks, self.microbatches, costs, in_flight=[int(most) for most in self.memory])
        if end >= rival - 1e-9:
            return False, f"makespan {end:g}, and {self.rival} takes {rival:g}"
        best = (
            "no order takes less"
            if end <= bound + 1e-9
            else f"no order takes less than {bound:g}; how near can you get?"
        )
        return True, f"makespan {end:g} against {rival:g}; {best}"


EXERCISES: dict[str, Exercise | Contest] = {
    "01.1": Exercise(_smallest_bottleneck, "", "the layers before the one of 8 cost 12 together"),
    "02.1": Exercise(_placements_of_small, "placements", "boundaries C(11, s-1) times ordered choices of s of 10 GPUs"),
    "03.1": Exercise(_layers_above_the_bound, "layers", "only A100 are that fast; add up the most layers of each"),
    "04.1": Exercise(_promise_for_small, "tokens/s", "solve it with method='type_count' and look into details"),
    "00.1": Exercise(_four_gpus_per_stage, "tokens/s", "use max_gpus_per_stage=4, two decimals"),
    "05.1": Exercise(_slowdown, "", "a number above 1; compare 1.1 · max ν with the optimum", rel=1e-3),
    "06.1": Exercise(_left_over_on_medium, "layers", "80 minus what all GPUs are worth together"),
    "06.2": Exercise(
        _fewest_gpus_of_a_heavy_demo, "GPUs", "ties are settled by the fewest GPUs: look at the answer's own"
    ),
    "05.2": Exercise(_heaviest_layer, "GB", "each A100 holds 4 layers and half of the activations in 80 GB", rel=1e-3),
    "07.1": Exercise(
        _message_that_costs_zbh1_its_lead, "", "both makespans are straight lines from 0.75 to 1", rel=1e-3
    ),
    "08.1": Exercise(_sequences_for_twice_the_time, "sequences", "the time grows along a straight line, from b = 1 on"),
    "08.2": Exercise(
        _cheapest_tokens_in_fp8,
        "$",
        "$ per hour / (3600 · tokens/s) · 10^6, for the placements that are fast enough",
        rel=2e-3,
    ),
    "09.1": Exercise(
        _heaviest_layer_of_the_demo, "GB", "the count falls between 2.0 and 2.1 GB: halve the interval", rel=5e-4
    ),
    "09.2": Exercise(
        _sequences_for_400, "sequences", "the rate is a straight line in the batch, as long as it is above 1"
    ),
    "07.2": Contest("1F1B", 8, times=(2, 1, 1, 2), memory=(4, 3, 2, 2)),
}


def check(name: str, value: Any) -> Answer:
    """Compare a reader's number with the target of an exercise, which is computed here and now.

    Parameters
    ----------
    name : str
        Of the exercise: notebook and number, such as `"05.1"`.
    value : number, Schedule or None
        The reader's; None means not attempted yet. A schedule is run by the simulator.

    Examples
    --------
    >>> print(check("00.1", None))
    exercise 00.1: not attempted yet
    >>> print(check("00.1", 345.4944))
    exercise 00.1: right, 345.4944 tokens/s
    >>> print(check("00.1", 301.784))
    exercise 00.1: not yet. Yours is 301.784 tokens/s, 12.7 % too low. Hint: use max_gpus_per_stage=4, two decimals
    """
    if name not in EXERCISES:
        raise UnknownName(f"there is no exercise {name!r}; {nearest(name, EXERCISES)}")
    exercise, name = EXERCISES[name], f"exercise {name}"
    if value is None:
        return _verdict("○", "#555555", f"{name}: not attempted yet")
    if isinstance(exercise, Contest):
        won, why = exercise.judge(value)
        return _verdict(
            *(("✓", "#00664B") if won else ("✗", "#B34700")), f"{name}: {'right' if won else 'not yet'}, {why}"
        )
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return _verdict("✗", "#B34700", f"{name}: not yet. Expected a number, yours is {value!r}")
    shown = f"{number:.7g} {exercise.unit}".strip()
    target = exercise.target()
    if math.isclose(number, target, rel_tol=exercise.rel):
        return _verdict("✓", "#00664B", f"{name}: right, {shown}")
    off = number / target - 1
    how = f"{abs(off) * 100:.3g} % too {'high' if off > 0 else 'low'}"
    return _verdict("✗", "#B34700", f"{name}: not yet. Yours is {shown}, {how}. Hint: {exercise.hint}")


def _verdict(sign: str, colour: str, text: str) -> Answer:
    return Answer(text, f"<p style='color:{colour}'><b>{sign}</b> {escape(text)}</p>")
