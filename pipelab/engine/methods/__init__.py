"""One file per method: from a problem to a result. Here are the words for them, for help and signatures."""

from typing import Literal

MethodName = Literal[
    "auto",
    "even",
    "proportional",
    "by_flops",
    "bandwidth_aware",
    "exhaustive",
    "single_gpu",
    "type_count",
    "joint",
    "aggregated",
]
ObjectiveName = Literal["throughput", "rate", "latency", "cost", "step_time", "regret"]
