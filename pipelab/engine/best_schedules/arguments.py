"""What `best_schedule` is given, checked, as a `Question`."""

from collections.abc import Sequence
from typing import cast

from pipelab.engine.best_schedules.question import MEMORY_SLACK, Question
from pipelab.engine.timeline.costs import StageCosts
from pipelab.errors import InvalidValue, TooLarge
from pipelab.fields import amounts, is_list, python_value, real_number, true_or_false, whole_number

LARGEST = 200_000  # actions; a program of so many takes gigabytes
_WHAT = "best_schedule"


def question_of(
    costs: StageCosts,
    microbatches: int,
    ranks: int | None,
    max_in_flight: int | Sequence[int] | None,
    memory: float | Sequence[float] | None,
    split_backward: bool,
) -> Question:
    """The arguments of `best_schedule`, checked.

    Raises
    ------
    InvalidValue, TooLarge
        As `best_schedule` says.
    """
    microbatches = whole_number(_WHAT, "microbatches", microbatches)
    split_backward = true_or_false(_WHAT, "split_backward", split_backward)
    ranks = _ranks(costs, ranks)
    if ranks * microbatches * (3 if split_backward else 2) > LARGEST:
        actions = ranks * microbatches * (3 if split_backward else 2)
        raise TooLarge(
            f"{_WHAT}: {ranks} ranks and {microbatches} microbatches make {actions:,} actions, more "
            f"than {LARGEST:,}; `lower_bound` bounds the makespan of any number",
            {"actions": actions},
        )
    if memory is not None and split_backward and costs.weight_activation is None:
        expected = (
            "a memory limit on a split backward needs what a weight gradient still holds of a "
            "microbatch's activations, such as StageCosts(…, weight_activation=32 / 34)"
        )
        raise InvalidValue(_WHAT, [("costs.weight_activation", None, expected)])
    held = microbatches if max_in_flight is None else python_value(max_in_flight)
    each: list = list(held) if isinstance(held, Sequence) else [held] * ranks
    if len(each) != ranks:
        expected = f"expected one number, or {ranks} for {ranks} ranks; got {len(each)}"
        raise InvalidValue(_WHAT, [("max_in_flight", held, expected)])
    in_flight = tuple(
        min(microbatches, whole_number(_WHAT, f"max_in_flight[{rank}]", number))
        for rank, number in enumerate(each)
    )
    limits = None if memory is None else _limits(memory, ranks)
    question = Question(costs, ranks, microbatches, in_flight, limits, split_backward)
    whole, kept = -question.takes["B"], -question.takes["W"]
    if split_backward and (kept > whole).any():
        expected = "expected at most `activation`, of which it is a part"
        raise InvalidValue(_WHAT, [("costs.weight_activation", costs.weight_activation, expected)])
    return question


def _ranks(costs: StageCosts, ranks: int | None) -> int:
    listed = {
        name: len(value) + (name == "comm")
        for name in ("forward", "backward_input", "backward_weight", "comm", "activation")
        if isinstance(value := getattr(costs, name), tuple)
    }
    if ranks is None and not listed:
        expected = (
            "expected a number: the costs are the same for all ranks, so they do not say how many"
        )
        raise InvalidValue(_WHAT, [("ranks", ranks, expected)])
    ranks = whole_number(_WHAT, "ranks", next(iter(listed.values())) if ranks is None else ranks)
    costs.arrays(ranks, "training")  # refuses lists of other lengths
    return ranks


def _limits(memory: float | Sequence[float], ranks: int) -> tuple[float, ...]:
    if is_list(memory):
        return tuple(amounts(_WHAT, "memory", cast(Sequence[float], memory), ranks))
    most = real_number(_WHAT, "memory", memory, "expected a number, or one per rank")
    return tuple(amounts(_WHAT, "memory", [most] * ranks, ranks))


def misfit(question: Question) -> str:
    """Why not even one microbatch fits; empty where one does."""
    if question.memory is None:
        return ""
    need = -question.takes["B"]
    for rank, most in enumerate(question.memory):
        if need[rank] > most * (1 + MEMORY_SLACK):
            return (
                f"rank {rank} needs {need[rank]:.6g} for the activations of one microbatch and may hold "
                f"{most:.6g}, {need[rank] - most:.6g} too little; recompute activations, or cut the "
                "model into more stages"
            )
    return ""
