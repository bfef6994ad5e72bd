"""The best order of a pipeline's actions, proven: no schedule of these costs is shorter.

`question` holds what is asked, `program` states it for OR-tools' CP-SAT, and `search` puts them together.
"""

from pipelab.engine.best_schedules.result import BestSchedule
from pipelab.engine.best_schedules.search import best_schedule

__all__ = ["BestSchedule", "best_schedule"]
