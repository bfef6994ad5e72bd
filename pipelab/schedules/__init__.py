"""Pipeline schedules: who does what in which order. Times are `pipelab.timeline`'s."""

from pipelab.schedules.action import Action
from pipelab.schedules.make import RULES, schedule
from pipelab.schedules.schedule import Schedule

__all__ = ["RULES", "Action", "Schedule", "schedule"]
