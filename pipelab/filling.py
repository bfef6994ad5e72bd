"""Dynamic batching, event by event: what a pipeline yields whose stages take whatever waits in front of them.

How an engine fills a pipeline, its filling, decides what it yields (`docs/fillings.md`; `Evaluation.attainable` has the
formulas). With "synchronous", "by_stages", "micro_batches" and "one" batches keep their sequences, and a formula is
exact. With "dynamic" a stage that becomes free takes all that waits as one batch. Two batches that meet go on as one.
Little parts them again: copies of a stage, new requests, prompts, which are passes of their own here, as in Helix's
workers, and the messages of a batch, which arrive one after the other. So most of the time most sequences travel
together, and as if all did:

    tokens/s = N / (Σ T_s(N) + hops + waiting for prompts)          N sequences, T_s(b) of stage s for b of them

A prompt is the slower vehicle on a road without overtaking. It takes P_s at stage s, and whoever comes upon it stays
behind it to the end. It entered up to X = Σ (P_s - T_s) + max T_s ago, and costs X / 2 on average; with λ prompts per
second a round waits λ · X² / 2. That is the closed form, `merged_rate`. `simulate_dynamic` follows every batch and
assumes none of this; `tests/front/test_filling.py` holds both side by side.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count, product
from typing import NamedTuple

import numpy as np

from pipelab.errors import InvalidValue
from pipelab.fields import MOST_COUNTED, Count, Positive, checked_value
from pipelab.serving import Line, Request, Simulation

__all__ = ["DynamicRun", "DynamicStage", "merged_rate", "simulate_dynamic"]


class DynamicStage(NamedTuple):
    """One stage, and the hop to the next one; after the last one, to the first.

    Attributes
    ----------
    decode_seconds : function of int
        Of a pass in which so many sequences get their next token.
    prompt_seconds : float
        Of a pass that reads one prompt.
    copies : int
        GPUs that each hold the stage; a sequence keeps to one of them.
    hop_seconds, prompt_hop_seconds : float
        Of the message of one token, or of one prompt. Messages follow one another, so the first of a batch finds the
        next stage idle more often than the others.
    """

    decode_seconds: Callable[[float], float]
    prompt_seconds: float
    copies: int = 1
    hop_seconds: float = 0.0
    prompt_hop_seconds: float = 0.0


class DynamicRun(NamedTuple):
    """What a pipeline did.

    Attributes
    ----------
    tokens_per_s : float
    token_seconds, prompt_seconds : float
        From the first stage to the end of the last one, in the mean: of a token; and of a prompt, not a number
        where none was read.
    """

    tokens_per_s: float
    token_seconds: float
    prompt_seconds: float


def simulate_dynamic(
    stages: Sequence[DynamicStage],
    sequences: int,
    answer_tokens: float,
    tokens: int = 10_000,
    seed: int = 0,
) -> DynamicRun:
    """Run a closed loop of sequences: when an answer ends, the next request's prompt enters.

    Parameters
    ----------
    stages : sequence of DynamicStage
    sequences : int
        That are in the pipeline at any time.
    answer_tokens : float
        Mean length of an answer; lengths are geometric. Infinite: answers do not end.
    tokens : int
        Until the end. The first fifth is not counted.
    seed : int
        Of lengths, copies and the beginning.

    Returns
    -------
    DynamicRun

    Raises
    ------
    InvalidValue
        A number is not a whole number of at least 1, or there is no stage.
    """
    checked_value("simulate_dynamic", "sequences", sequences, Count)
    checked_value("simulate_dynamic", "tokens", tokens, Count)
    if not stages:
        raise InvalidValue("simulate_dynamic", [("stages", stages, "expected at least one")])
    run = Simulation(
        ways_of(stages, sequences),
        answers_of(stages, sequences, answer_tokens, seed),
        clients=sequences,
        takes_all=range(sum(stage.copies for stage in stages)),
    )
    run.run(lambda at: at.tokens >= tokens // 5)
    begin, before = run.now, (run.tokens, run.token_seconds)
    run.run(lambda at: at.tokens >= tokens)
    later = [visit for visit in run.visits[sequences:] if not math.isnan(visit.first)]
    read = [visit.first - visit.came - stages[-1].prompt_hop_seconds for visit in later]
    written = run.tokens - before[0]
    return DynamicRun(
        tokens_per_s=written / (run.now - begin),
        token_seconds=(run.token_seconds - before[1]) / written - stages[-1].hop_seconds,
        prompt_seconds=math.fsum(read) / len(read) if read else math.nan,
    )


def ways_of(stages: Sequence[DynamicStage], sequences: int) -> list[Line]:
    """Make a line for each way through copies of stages; a copy is a lane."""
    numbers = count()
    copies = [[next(numbers) for _ in range(stage.copies)] for stage in stages]

    @cache
    def seconds_of(reads: float, writes: float) -> tuple[np.ndarray, np.ndarray]:
        return (
            np.array(
                [s.decode_seconds(writes) if writes else reads * s.prompt_seconds for s in stages]
            ),
            np.array([s.hop_seconds if writes else s.prompt_hop_seconds for s in stages]),
        )

    return [
        Line(
            lanes=np.array(way),
            times=lambda work: seconds_of(work.reads, work.writes),
            at_once=sequences,
            sequences=1,
        )
        for way in product(*copies)
    ]


def answers_of(
    stages: Sequence[DynamicStage], sequences: int, mean_tokens: float, seed: int
) -> Iterator[Request]:
    """Draw answers of geometric lengths, each behind a prompt that counts as one token.

    The first come within a round, and their prompts have been read.
    """
    chance = random.Random(seed)
    one_round = sum(stage.decode_seconds(1) + stage.hop_seconds for stage in stages)
    goes_on = math.log1p(-1 / mean_tokens) if 1 < mean_tokens < math.inf else -math.inf
    for number in count():
        more = math.log(1 - chance.random()) / goes_on
        tokens = MOST_COUNTED if math.isinf(mean_tokens) else 1 + int(more)
        begun = number < sequences
        seconds = chance.random() * one_round if begun else 0.0
        yield Request(seconds, 1, 1 + tokens, written=int(begun))


def merged_rate(
    stages: Sequence[DynamicStage], sequences: float, answer_tokens: float
) -> tuple[float, float]:
    """Compute the closed form: all sequences travel together, and wait behind prompts.

    Parameters
    ----------
    stages : sequence of DynamicStage
        Copies divide the sequences evenly.
    sequences, answer_tokens : float
        As for `simulate_dynamic`.

    Returns
    -------
    tuple of float
        Tokens/s, and seconds from the first stage to the end of the last one.
    """
    checked_value("merged_rate", "sequences", sequences, Positive)
    passes = [s.decode_seconds(max(1.0, sequences / s.copies)) for s in stages]
    both = zip(stages, passes, strict=True)
    behind = math.fsum(max(0.0, stage.prompt_seconds - seconds) for stage, seconds in both)
    half = (behind + max(passes)) ** 2 / 2 / answer_tokens  # seconds, for each token per second
    round_trip = math.fsum(passes) + math.fsum(s.hop_seconds for s in stages)
    # N = λ · (round trip + λ · half)
    slope = round_trip / 2
    rate = sequences / (slope + math.sqrt(slope**2 + half * sequences))
    return rate, sequences / rate - stages[-1].hop_seconds
