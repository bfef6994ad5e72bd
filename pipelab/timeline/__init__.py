"""Times for a schedule: costs in, a timeline with its measures out."""

from pipelab.timeline.costs import StageCosts
from pipelab.timeline.placements import inference_costs
from pipelab.timeline.simulate import simulate
from pipelab.timeline.timeline import Timeline
from pipelab.timeline.trace import save_chrome_trace

__all__ = ["StageCosts", "Timeline", "inference_costs", "save_chrome_trace", "simulate"]
