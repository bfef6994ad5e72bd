"""What a search asked a solver, and what came of it."""

from dataclasses import dataclass

__all__ = ["Question"]


@dataclass(frozen=True)
class Question:
    """One small program: can this rate be reached?"""

    rate: float  # tokens/s
    # "links aside", "stages inside one class", "links for one GPU", "with links", "least gpus", …
    asked: str
    answer: str  # "yes", "no", "not answered"
    variables: int
    rows: int
    seconds: float
