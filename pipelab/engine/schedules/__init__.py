"""Pipeline schedules: who does what in which order. Times are `pipelab.engine.timeline`'s."""

from pipelab.engine.schedules.action import Action
from pipelab.engine.schedules.by_name import RULES, schedule
from pipelab.engine.schedules.schedule import Schedule

__all__ = ["RULES", "Action", "Schedule", "schedule"]
