"""Notebook 11, Requests and queues: when an answer is complete, and how long requests wait behind others."""

import random
from math import isclose

from pipelab.course.exercises import Exercise, Function, Given, drawn

# Exercises


def _request(chance: random.Random) -> Given:
    """A pipeline's times for a prompt and for one token, the length of an answer, and the load."""
    stages = chance.randint(1, 5)
    prefill, decode = ([chance.randint(a, b) for _ in range(stages)] for a, b in ((5, 40), (1, 9)))
    tokens, m = chance.randint(1, 12), chance.randint(1, 8)
    return Given(prefill=prefill, decode=decode, tokens=tokens, m=m)


def _seconds(given: Given, one_more: bool = False) -> float:
    each = max(sum(given.decode), given.m * max(given.decode))
    return sum(given.prefill) + (given.tokens - 1 + one_more) * each


def _look_at_request(given: Given) -> str:
    if given.tokens == 1:
        return "the first token comes out of the prefill"
    if given.m * max(given.decode) > sum(given.decode):
        return "the slowest stage serves all microbatches in turn before this one is back"
    return "the first token comes out of the prefill; how many traversals of decode are left?"


def _arrivals(chance: random.Random) -> Given:
    """Seconds of each stage for a request of length 1, when requests come, and how long they are."""
    stages = [chance.randint(1, 6) for _ in range(chance.randint(1, 4))]
    came, lengths = [0], [1]
    for _ in range(chance.randint(0, 7)):
        came.append(came[-1] + chance.randint(0, 2 * max(stages)))
        lengths.append(chance.choice((1, 1, 2, 4)))
    return Given(stages=stages, came=came, lengths=lengths)


def _mean_wait(given: Given, stages: list[int] | None = None) -> float:
    """How much longer a request is on its way than alone, in the mean; by default through all stages."""
    stages = stages or given.stages
    free, waited = [0] * len(stages), 0
    for came, length in zip(given.came, given.lengths, strict=True):
        now = came
        for stage, seconds in enumerate(stages):
            now = free[stage] = max(now, free[stage]) + length * seconds
        waited += now - came - length * sum(stages)
    return waited / len(given.came)


def _at_the_slowest(given: Given) -> float:
    return _mean_wait(given, [max(given.stages)])


def _look_at_arrivals(given: Given) -> str:
    if len(given.came) == 1:
        return "whoever is alone does not wait"
    if len(given.stages) == 1:
        return "one stage here: from when on is it free for the next request?"
    if _mean_wait(given) > _at_the_slowest(given):
        return "here a request also waits behind a longer one on a stage that is not the slowest"
    return "when has a stage ended the request before, and when does this one come to it?"


EXERCISES: dict[str, Exercise] = {
    "11.1": Function(
        signature="answer_seconds(prefill, decode, tokens, m)",
        inputs=drawn(102, 200, _request, lambda given: (len(given.decode), given.tokens)),
        target=_seconds,
        hint=_look_at_request,
        half=lambda given, seconds: seconds == _seconds(given, one_more=True),
    ),
    "11.2": Function(
        signature="mean_wait(stages, came, lengths)",
        inputs=drawn(112, 200, _arrivals, lambda given: (len(given.came), len(given.stages))),
        target=_mean_wait,
        hint=_look_at_arrivals,
        half=lambda given, wait: isclose(wait, _at_the_slowest(given)),
    ),
}
