"""Pipeline schedules: who does what in which order. Times are `pipelab.engine.timeline`'s."""

from pipelab.engine.schedules.by_name import RULES, schedule
from pipelab.engine.schedules.validation import defects, validate
from pipelab.engine.schedules.views import with_communication, with_idle, without_communication

__all__ = [
    "RULES",
    "defects",
    "schedule",
    "validate",
    "with_communication",
    "with_idle",
    "without_communication",
]
