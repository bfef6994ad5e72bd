"""Why no placement trains: which stage lacks how much, and what would help."""

from collections.abc import Mapping

from pipelab.engine.deadline import Deadline
from pipelab.engine.training.stages import Stages


def why_none_fits(
    stages: Stages,
    schedule: str,
    absent: Mapping[str, str],
    deadline: Deadline,
    bytes_per_parameter: float | None,
) -> str:
    """The reason in words."""
    if schedule in absent:
        return absent[schedule]
    return "nothing fits"
