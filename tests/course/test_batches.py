"""Notebook 10's batches that change from pass to pass."""

import random

import pytest

from pipelab import course
from pipelab.course.n10 import BATCHING


def _drawn(seed):
    """Requests and slots, and passes of which the (read, written) tokens are noted."""
    chance, passes = random.Random(seed), []
    requests = [(chance.randint(1, 9), chance.randint(1, 6)) for _ in range(chance.randint(1, 7))]

    def seconds(read, write):
        passes.append((read, write))
        return 1 + read + write / 8

    return requests, chance.randint(1, 4), chance.randint(1, 5), seconds, passes


@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("seed", range(40))
def test_every_token_is_read_and_written_once(seed, batching):
    requests, slots, chunk, seconds, passes = _drawn(seed)
    served = course.serve(seconds, requests, slots, batching, chunk)
    assert sum(read for read, _ in passes) == sum(prompt for prompt, _ in requests)
    # the first token of an answer comes with the end of its prompt
    assert sum(write for _, write in passes) == sum(answer - 1 for _, answer in requests)
    assert served.seconds == pytest.approx(sum(1 + read + write / 8 for read, write in passes))
    assert len(served.slots) == slots
    assert all(sum(m.seconds for m in of) == pytest.approx(served.seconds) for of in served.slots)
    assert all(write <= slots for _, write in passes)
    if batching == "in chunks":
        assert max(read for read, _ in passes) <= chunk
    else:
        assert not any(read and write for read, write in passes)


@pytest.mark.parametrize("seed", range(40))
def test_who_takes_a_free_place_at_once_is_done_no_later(seed):
    """If every pass takes one second, prompts are read in one, and answers differ."""
    requests, slots, *_ = _drawn(seed)
    alone = [(1, answer) for _, answer in requests]
    whole, free = (
        course.serve(lambda read, write: 1, alone, slots, way, chunk=slots)
        for way in ("batch by batch", "in chunks")
    )
    assert free.seconds <= whole.seconds
    batches = [alone[i : i + slots] for i in range(0, len(alone), slots)]
    assert whole.seconds == sum(max(answer for _, answer in batch) for batch in batches)
