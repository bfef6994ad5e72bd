"""Exercises of notebooks 03 and 04: one GPU per stage, the heuristic."""

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.rule_targets import (
    SLOW_GB_PER_S,
    fast_layers,
    loaded_case,
    medium_links,
    predicted_rate,
    slow_enough,
    unlike,
)

RULES = {
    "03.1": Exercise(
        fast_layers,
        "layers",
        "only A100 are that fast; add up the most layers of each",
        (
            Mistake(
                lambda: fast_layers(strictly=False),
                "that includes the rate of the bound itself; strictly above",
            ),
            Mistake(lambda: fast_layers() / 5, "that is what one A100 holds; there are five"),
        ),
    ),
    "03.2": Exercise(
        lambda: medium_links()[1] / medium_links()[0],
        "",
        "the slowest link may just fall to the bound; count it in tokens/s first",
        (
            Mistake(
                lambda: medium_links()[0] / medium_links()[1],
                "upside down: a number above 1 is asked for",
            ),
            Mistake(
                lambda: medium_links("transfers")[1] / medium_links()[0],
                "that compares transfers/s with tokens/s, as the write-up does; one transfer carries many tokens",
            ),
            Mistake(
                lambda: (
                    medium_links("transfers")[1]
                    / medium_links()[0]
                    * loaded_case("medium").workload.batch_size
                ),
                "a transfer carries every token of its sequences, not one of each",
            ),
            Mistake(
                lambda: medium_links()[2] / medium_links()[0],
                "that is the fastest link; the slowest is the first to fall below the bound",
            ),
        ),
        rel=1e-3,
    ),
    "04.1": Exercise(
        predicted_rate,
        "tokens/s",
        "solve it with method='type_count' and look for what it promises",
        (
            Mistake(
                lambda: predicted_rate(factor=False),
                "that is without the factor (2 - 1/k); it is asked as written",
            ),
            Mistake(
                lambda: predicted_rate(max_gpus_per_stage=2),
                "that is with two GPUs per stage; allow four",
            ),
        ),
        none="the heuristic names no GPU, so its result has no placement and no throughput; what it promises is in "
        "the result's details",
    ),
    "04.2": Exercise(
        lambda: slow_enough(unlike()[2]),
        "GB/s",
        "find the speed at which the link between L20 and A100 carries just the rate of the placement without the A100",
        (
            Mistake(
                lambda: slow_enough(unlike()[2], "transfers"),
                "that counts transfers/s; one transfer carries batch × sequence tokens",
            ),
            Mistake(
                lambda: slow_enough(unlike()[0]),
                "there the choice still yields all that it promised; it may fall to the placement without the A100",
            ),
            Mistake(
                lambda: SLOW_GB_PER_S / slow_enough(unlike()[2]),
                "that is how many times slower, not GB/s",
            ),
            Mistake(
                lambda: SLOW_GB_PER_S * unlike()[1] / unlike()[2],
                "upside down: the links must get slower",
            ),
        ),
        rel=1e-3,
    ),
}
