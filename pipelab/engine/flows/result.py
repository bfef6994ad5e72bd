"""What `flow` returns: stages that may overlap, the ways through them, and how far they may be from the best."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from pipelab.deployment_and_flow import FlowPlan
from pipelab.display import DataFrame, counted, data_frame, rate, table
from pipelab.engine.answers import ProvenAnswer
from pipelab.evaluation import FlowEvaluation, evaluate, tally
from pipelab.fields import derived, given
from pipelab.placement import show_layers
from pipelab.problem import Problem


@dataclass(frozen=True, eq=False, kw_only=True)
class Flow(ProvenAnswer, FlowPlan):
    """Stages on GPUs of their own, and what goes which way through them: what `flow` returns.

    Attributes
    ----------
    problem : Problem
    status : str
        "optimal": proven, no flow is better. "feasible": a flow without that proof. "infeasible": there is
        none, see `reason`. "unknown": none was found, and it is not proven that there is none.
    stages : tuple of Stage
        By first layer; several may hold the same layers.
    in_flight : tuple of int
        How many microbatches each needs memory for, and has.
    ways : tuple of Way
        Indices of stages in order, and tokens/s.
    throughput : float or None
        Of all ways, as `evaluate` recomputes it, tokens/s.
    bound : float or None
        No flow has more tokens/s.
    seconds : float
        From the call to the answer.
    memory_for : int or None
        Microbatches in flight that memory was counted for, where the rate of stages that are always busy was
        maximised (objective "rate"); None where all in flight have memory.
    size : mapping of str to int
        Blocks and patterns that the search and the bound are about.
    solver : str
        Name and version.
    reason : str
        Why there is no flow, or why its proof is missing.
    stopped_by : str or None
        What ended it early.
    details : mapping
        `progress`: (seconds, throughput, bound) whenever one of the last two changed.
    """

    problem: Problem
    throughput: float | None = None

    @property
    def _goal(self) -> tuple[float | None, float | None, bool]:
        return self.throughput, self.bound, False

    @derived
    def evaluation(self) -> FlowEvaluation | None:
        """Every stage, link and way, recomputed from the raw data; None without a flow."""
        return evaluate(self.problem, self) if self.ways else None

    @derived
    def links(self) -> dict[tuple[int, int], float]:
        """Tokens/s from stage to stage, by their indices; -1 is where requests come from and tokens go to."""
        out: dict[tuple[int, int], float] = defaultdict(float)
        for way, carried in self.ways:
            for hop in pairwise((-1, *way, -1)):
                out[hop] += carried
        return dict(sorted(out.items()))

    @property
    def shares(self) -> dict[int, dict[int, float]]:
        """Routing weights: of what leaves a stage (-1: of all requests), the share that each next one takes."""
        total: dict[int, float] = defaultdict(float)
        for (sender, _), carried in self.links.items():
            total[sender] += carried
        out: dict[int, dict[int, float]] = defaultdict(dict)
        for (sender, receiver), carried in self.links.items():
            out[sender][receiver] = carried / total[sender]
        return dict(out)

    @property
    def sentence(self) -> str:
        """The answer in one or two sentences."""
        if self.status in ("infeasible", "unknown"):
            return self._none_found("flow")
        full = " as the rate of stages that are always busy" if self.memory_for is not None else ""
        text = f"{rate(given(self.throughput))}{full} on {counted(len(self.ways), 'way')}"
        text += f" through {counted(len(self.stages), 'stage')}"
        if self.status == "optimal":
            return f"{text}, proven optimal among all flows in {self.seconds:.3g} s." + self._remark
        far = self._up_to("; the best", "faster")
        return f"{text}, not proven best{self._why}{far}." + self._remark

    def to_frame(self) -> DataFrame:
        """The stages as a table, one row for each.

        Returns
        -------
        pandas.DataFrame
            `layers`, `gpus`, `gpu_types`, `in_flight`, `carried_tokens_per_s`, and `next`: the share
            that goes on to each stage, by its row.
        """
        gpus, shares = self.problem.cluster.gpus, self.shares
        rows = [
            {
                "layers": show_layers(stage.layers),
                "gpus": ", ".join(map(str, stage.gpus)),
                "gpu_types": tally(tuple(gpus[g].type for g in stage.gpus)),
                "in_flight": number,
                "carried_tokens_per_s": sum(r for way, r in self.ways if v in way),
                "next": ", ".join(
                    f"{share:.0%} to {w}" for w, share in shares.get(v, {}).items() if w >= 0
                ),
            }
            for v, (stage, number) in enumerate(zip(self.stages, self.in_flight, strict=True))
        ]
        return data_frame(rows)

    def to_dict(self) -> dict:
        """Plain data for JSON, numbers unrounded.

        Returns
        -------
        dict
            The attributes, with units in the names where these have any; layers count from 1.
        """
        held = zip(self.stages, self.in_flight, strict=True)
        return {
            "problem": self.problem.name,
            "status": self.status,
            "throughput_tokens_per_s": self.throughput,
            "bound_tokens_per_s": self.bound,
            "memory_for": self.memory_for,
            **self._end,
            "size": dict(self.size),
            "stages": [
                {
                    "first_layer": stage.layers.start + 1,
                    "last_layer": stage.layers.stop,
                    "gpus": list(stage.gpus),
                    "in_flight": number,
                }
                for stage, number in held
            ],
            "ways": [{"stages": list(w), "tokens_per_s": carried} for w, carried in self.ways],
        }

    def __str__(self) -> str:
        return f"{self.problem.name}: {self.sentence}"

    def _repr_html_(self) -> str:
        return self._shown(self.problem.name, table(self.to_frame()) if self.ways else "")
