"""Dynamic batching: the simulation where results are known, and the closed form beside it."""

import math

import numpy as np
import pytest

from clone import text_of
from pipelab.filling import DynamicStage, merged_rate, simulate_dynamic


def steady(seconds, **more):
    """A stage that takes as long for any batch."""
    return DynamicStage(lambda b: seconds, 0.0, **more)


@pytest.mark.parametrize("sequences", [1, 2, 7, 40])
def test_one_stage_has_all_sequences_in_one_batch(sequences):
    stage = DynamicStage(lambda b: 1.0 + 0.1 * b, 0.0)
    run = simulate_dynamic([stage], sequences, math.inf)
    assert run.tokens_per_s == pytest.approx(sequences / (1 + 0.1 * sequences), rel=1e-3)


@pytest.mark.parametrize("stages", [1, 3, 8])
def test_one_sequence_never_waits(stages):
    hops = [steady(0.5 + s, hop_seconds=0.25) for s in range(stages)]
    run = simulate_dynamic(hops, 1, math.inf)
    through = sum(0.5 + s for s in range(stages)) + 0.25 * (stages - 1)
    assert run.token_seconds == pytest.approx(through, rel=1e-9)
    assert run.tokens_per_s == pytest.approx(1 / (through + 0.25), rel=1e-3)
    assert merged_rate(hops, 1, math.inf) == pytest.approx((run.tokens_per_s, through), rel=1e-3)


def test_littles_law_holds():
    rng = np.random.default_rng(3)
    for _ in range(10):
        stages = random_stages(rng)
        number = int(rng.integers(1, 40))
        run = simulate_dynamic(stages, number, math.inf, tokens=200 * number)
        back = stages[-1].hop_seconds
        assert run.tokens_per_s * (run.token_seconds + back) == pytest.approx(number, rel=0.02)


def test_a_prompt_lengthens_what_comes_behind_it():
    """Alone in two stages, a sequence of two tokens has one prompt for two tokens."""
    stages = [DynamicStage(lambda b: 1.0, 5.0)] * 2
    run = simulate_dynamic(stages, 1, 2.0, tokens=20_000)
    assert run.tokens_per_s == pytest.approx(2 / (10 + 2 * 2), rel=0.02)
    assert run.prompt_seconds == pytest.approx(10.0)


def random_stages(rng):
    """Two to twenty stages, equal or not, whose passes take longer from some batch on, and prompts of some passes."""
    number, unequal = int(rng.integers(2, 21)), rng.choice([0.0, 0.1, 0.4])
    knee, slope = np.exp(rng.uniform(np.log(8), np.log(300))), rng.uniform(0.002, 0.02)
    times, stages = np.exp(rng.normal(0, unequal, number)), []
    ratio = rng.choice([1.5, 4, 8, 15])
    for time in times:
        seconds = lambda b, time=time: time * (max(1, b / knee) + slope * b)  # noqa: E731
        stages.append(DynamicStage(seconds, float(time * ratio), hop_seconds=1e-4))
    return stages


def errors(seeds):
    """(sequences per stage, closed form over simulation) of random pipelines."""
    found = []
    for seed in seeds:
        rng = np.random.default_rng([56, seed])
        stages = random_stages(rng)
        number = int(np.exp(rng.uniform(np.log(2), np.log(200))))
        answer = float(rng.choice([30, 200, 600]))
        run = simulate_dynamic(stages, number, answer, tokens=max(4000, 40 * number), seed=seed)
        closed, _ = merged_rate(stages, number, answer)
        found.append((number / len(stages), closed / run.tokens_per_s))
    return np.array(found)


@pytest.mark.slow
@pytest.mark.daily(1)
@pytest.mark.parametrize("pipelines", [12, 200])
def test_the_closed_form_beside_the_simulation(pipelines):
    """`docs/fillings.md` has these errors; with many sequences per stage they are largest, and said to be."""
    table = errors(range(pipelines))
    load, error = table[:, 0], np.abs(table[:, 1] - 1)
    if pipelines == 200:
        page = text_of("docs/fillings.md")
        for name, some in {
            "below 1": load < 1, "1 to 4": (load >= 1) & (load < 4), "above 4": load >= 4, "all": load > 0
        }.items():  # fmt: skip
            cells = f"{np.median(error[some]):.0%} | {np.quantile(error[some], 0.9):.0%}"
            assert f"| {name} | {cells.replace('%', ' %')} |" in page
    assert np.median(error) < 0.25
    assert np.median(error[load < 1]) < 0.15
    assert np.median(error[load > 4]) < 0.5
    assert np.median(error[load > 4]) > np.median(error[load < 1])
