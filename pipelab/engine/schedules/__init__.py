"""Pipeline schedules: who does what in which order. Times are `pipelab.engine.timeline`'s."""

from pipelab.engine.schedules.columns import defects
from pipelab.engine.schedules.named_schedules import RULES, schedule

__all__ = ["RULES", "defects", "schedule"]
