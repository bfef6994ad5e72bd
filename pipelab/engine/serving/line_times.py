"""What stages and links take for any batch, from what a cost model says of even ones.

A cost model times microbatches of one kind: b sequences that write, or prompts of one length, or both in the
proportion of the workload. In an engine a batch may have any number of either. Where it has both, the prompts' part is
what a mixed microbatch takes beyond the same sequences without prompts:

    T(r, w) = T_decode(w, context) + (T_mixed(w, S, O) - T_decode(w, S + O/2)) · r / (w·S/O),      O ≈ w·S / r

with prompts of the workload's length S. Times are computed at whole numbers up to 16, further ones a quarter of an
octave apart, and those that a plan is about (its lengths, its batch); between two of them they are on a straight line.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import ceil
from typing import Any

import numpy as np

from pipelab.evaluation import StageReport
from pipelab.problem import CostModel, Phase, Problem, Workload, answered
from pipelab.serving import Work

_GRID = {*range(17), *(round(2 ** (k / 4)) for k in range(16, 121))}
_MOST_REMEMBERED = 100_000


class LineTimes:
    """Times of the stages and links of one pipeline: what `pipelab.serving.Line` asks for.

    Parameters
    ----------
    problem : Problem
        Whose cost model, model and lengths count.
    stages : sequence of StageReport
        In order; a link follows each but the last. GPUs that cut layers always do, others never.
    """

    def __init__(self, problem: Problem, stages: Sequence[StageReport]) -> None:
        load = problem.workload
        self.problem, self.stages = problem, stages
        self.prompt = load.sequence_length
        middle = load.sequence_length + (load.output_tokens or 0) // 2
        self.points = sorted({*_GRID, self.prompt, middle, load.batch_size})
        self._together = lru_cache(_MOST_REMEMBERED)(self._sum)
        self._measured = lru_cache(_MOST_REMEMBERED)(self._measure)

    @cached_property
    def kinds(self) -> tuple[list[tuple[CostModel, StageReport]], list[int]]:
        """Stages between which a cost model may not tell (`CostModel`), one of each; and the kind of every stage."""
        costs, model, kinds = self.problem.costs, self.problem.model, list[Any]()
        numbers, of_stage = dict[str, int](), []
        for report in self.stages:
            stage = report.stage
            gpus = [self.problem.cluster.gpus[gpu] for gpu in stage.gpus]
            held = len(stage.layers), model.work(stage.layers), model.weight_gb(stage.layers)
            number = numbers.setdefault(str((gpus, *held, report.degree)), len(kinds))
            if number == len(kinds):
                cut = costs.cutting_every_layer if report.degree > 1 else costs.cutting_no_layer
                kinds.append((costs if len(gpus) == 1 else cut(), report))
            of_stage.append(number)
        return kinds, of_stage

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """GB/s and ms between all GPUs that neighbouring stages have, and where those of each link begin."""
        cluster, speeds, latencies, begins = self.problem.cluster, list[float](), list[float](), []
        for sender, receiver in pairwise(self.stages):
            begins.append(len(speeds))
            for pair in product(sender.stage.gpus, receiver.stage.gpus):
                speeds.append(cluster.bandwidth_between(*pair))
                latencies.append(cluster.latency_between(*pair))
        return np.array(speeds), np.array(latencies), begins

    def __call__(self, work: Work) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of every lane for a batch, and those until it is handed on."""
        reads, writes, prompts = ceil(work.reads), ceil(work.writes), ceil(work.prompts)
        total = np.zeros((2, 2 * len(self.stages) - 1))
        if writes:
            for context, share in self._neighbours(work.context):
                total += share * self._together(reads, writes, context)
        else:
            for length, share in self._neighbours(max(1.0, reads / prompts)):
                total += share * self._measured("prefill", length, prompts, None)
            if work.behind:
                total += self._pairs_behind(work) * self.per_pair
        return total[0], total[1] - total[0]

    @cached_property
    def per_pair(self) -> np.ndarray:
        """Return the seconds of a pair of tokens of which one looks back at the other; shape (2, lanes).

        A prompt of n tokens has n²/2 pairs, and all else that it takes grows with n: so the second difference of n,
        2n and 3n tokens is that of n² pairs, as long as every layer looks back at all of them.
        """
        tokens = self.prompt
        while tokens > 1 and self._seen(3 * tokens) < 3 * self._seen(tokens) * (1 - 1e-9):
            tokens //= 2
        lengths = tokens, 2 * tokens, 3 * tokens
        once, twice, thrice = (self._measured("prefill", length, 1, None) for length in lengths)
        return np.maximum(0.0, once - 2 * twice + thrice) / tokens**2

    def _seen(self, tokens: int) -> float:
        """Count the tokens that a layer looks back at, of so many before it, in the mean over layers."""
        model = self.problem.model
        one, kept = (model.cached_bytes(range(model.layers), number) for number in (1, tokens))
        return kept / one if one else 0.0

    @cached_property
    def _pairs_up_to(self) -> np.ndarray:
        """The pairs of a prompt of as many tokens as each point has: what all of them look back at, added up."""
        seen = np.array([self._seen(max(1, point)) for point in self.points])
        steps = (seen[1:] + seen[:-1]) / 2 * np.diff(self.points)
        return np.concatenate([[0.0], np.cumsum(steps)])

    def _pairs_behind(self, work: Work) -> float:
        """Count the pairs of parts of prompts with what was read before them, in the window of a layer."""
        length, before = work.reads / work.prompts, work.behind / work.reads
        ends = [before + length, before, length]
        whole, first, alone = np.interp(ends, self.points, self._pairs_up_to)
        return work.prompts * float(whole - first - alone)

    def _neighbours(self, number: float) -> Iterator[tuple[int, float]]:
        """Yield the points on both sides, with their weights."""
        below = self.points[bisect_right(self.points, number) - 1]
        above = self.points[bisect_left(self.points, number)]
        share = (number - below) / (above - below) if above > below else 0.0
        yield below, 1 - share
        if share:
            yield above, share

    def _sum(self, reads: int, writes: int, context: int) -> np.ndarray:
        """Return the seconds of answers, and of prompts beside them; shape (2, lanes)."""
        total = np.zeros((2, 2 * len(self.stages) - 1))
        for some, part in self._neighbours(writes):
            total += part * self._measured("decode", max(1, context), some, None)
            for tokens, share in self._neighbours(reads):
                if tokens:
                    total += part * share * self._beside(tokens, some)
        return total

    def _beside(self, reads: int, writes: int) -> np.ndarray:
        """Return what a mixed microbatch takes beyond one without prompts, for so many tokens of these."""
        answer = max(1, round(writes * self.prompt / reads))
        mixed = self._measured("mixed", self.prompt, writes, answer)
        without = self._measured("decode", self.prompt + answer // 2, writes, None)
        return (mixed - without) * (reads * answer / (writes * self.prompt))

    def _measure(self, phase: Phase, length: int, batch: int, answer: int | None) -> np.ndarray:
        """Ask the cost model for the seconds of every lane, and those until it hands on; shape (2, lanes)."""
        load = Workload(length, batch, phase, output_tokens=answer)
        problem = replace(self.problem, workload=load)
        kinds, of_stage = self.kinds
        lanes = np.empty((2, 2 * len(self.stages) - 1))
        times = []
        for costs, report in kinds:
            gpus = [problem.cluster.gpus[gpu] for gpu in report.stage.gpus]
            asked = problem.model, load, gpus, report.stage.layers, problem.batch_split
            cost = answered(costs, *asked)
            times.append((load.tokens / cost.throughput, cost.seconds(load.tokens)))
        lanes[:, ::2] = np.array(times)[of_stage].T
        speeds, latencies, begins = self.pairs
        if begins:
            slowest = np.minimum.reduceat(speeds, begins)
            lanes[0, 1::2] = load.tokens / problem.link_throughput(slowest)
            seconds = problem.message_seconds(speeds, latencies)
            lanes[1, 1::2] = np.maximum.reduceat(seconds, begins)
        return lanes
