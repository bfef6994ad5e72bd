"""Pipelines that were measured, and what they would yield by each way to fill them."""

import math
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipelab.cluster import GPU
from pipelab.display import DataFrame
from pipelab.errors import InvalidValue, nearest
from pipelab.fields import Count, Positive, checked
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import frame_of, place, read_objects
from pipelab.filling import DynamicStage, merged_rate, simulate_dynamic
from pipelab.hardware.known_models import load_model
from pipelab.hardware.pass_times import Demand, Span
from pipelab.hardware.published_times import Predictor, of_known_models
from pipelab.problem import Workload

ENGINE = "vLLM 0.2"  # eager, as the workers' vLLM 0.4.0 is
NETWORK_GB_PER_S = 1.25  # 10 Gb/s Ethernet between workers
HOP_LATENCY_S = 1e-5


class PipelineErrors(NamedTuple):
    """Predicted over measured, less 1.

    Attributes
    ----------
    rate_error, latency_error : float
        Of tokens/s and of the mean time of a token from the first stage to the last, with the filling "dynamic",
        simulated.
    prompt_latency_error : float
        Of the mean time of a prompt, likewise.
    merged_rate_error : float
        Of tokens/s by the closed form (`pipelab.filling.merged_rate`).
    synchronous_rate_error : float
        Of tokens/s of equal microbatches that never wait for one another, with the best number of them.
    """

    rate_error: float
    latency_error: float
    prompt_latency_error: float
    merged_rate_error: float
    synchronous_rate_error: float


@checked
class PipelineRun:
    """A row of a file with the columns of `data/pipelines_measured.csv`: means over a run's logged minutes."""

    model: str
    layers: Count
    stages: str
    decode_tokens_per_s: Positive
    prompt_tokens_per_s: Positive
    in_flight: Positive
    mean_prompt_tokens: Positive
    mean_context: Positive
    decode_latency_mean_s: Positive
    prompt_latency_mean_s: Positive

    @property
    def answer_tokens(self) -> float:
        """Tokens that follow each prompt, in the mean."""
        return self.decode_tokens_per_s * self.mean_prompt_tokens / self.prompt_tokens_per_s

    def parts(self, known: Any) -> list[tuple[int, str, int]]:
        """Return the layers of every stage, its type of GPU, and how many GPUs hold it."""
        found = []
        for text in self.stages.split():
            number, _, names = text.partition("x")
            types = names.split("+")
            if not number.isdecimal() or len(set(types)) > 1:
                expected = "expected layers × GPUs of one type, such as 4xT4 or 4xT4+T4"
                raise InvalidValue("a pipeline", [("stages", text, expected)])
            if types[0] not in known:
                raise InvalidValue("a pipeline", [("stages", text, nearest(types[0], known))])
            found.append((int(number), types[0], len(types)))
        if sum(number for number, _, _ in found) != self.layers:
            expected = f"expected {self.layers} layers in all"
            raise InvalidValue("a pipeline", [("stages", self.stages, expected)])
        return found

    def timed(self, costs: Predictor) -> list[DynamicStage]:
        """Return the stages with the times of a cost model."""
        model, costs = load_model(self.model, precision="fp16"), costs.running(ENGINE)
        decode = Demand(model, Workload(round(self.mean_context), 1, "decode"))
        prefill = Demand(model, Workload(round(self.mean_prompt_tokens), 1))
        batches = np.arange(1, math.ceil(self.in_flight) + 2)
        moved = model.d_model * model.bytes_per_element / (NETWORK_GB_PER_S * 1e9)
        stages, first = [], 0
        for number, gpu_type, copies in self.parts(costs.gpus):
            gpu = GPU(gpu_type, costs.gpus[gpu_type].memory_gb)
            span = Span.of(model, range(first, first + number))
            first += number
            passes = costs.hardware(decode, [gpu]).take(0).stage_seconds(span, batches, 1)
            prompt = costs.hardware(prefill, [gpu]).take(0).stage_seconds(span, 1, 1)
            stages.append(
                DynamicStage(
                    decode_seconds=partial(np.interp, xp=batches, fp=passes),
                    prompt_seconds=float(prompt),
                    copies=copies,
                    hop_seconds=HOP_LATENCY_S + moved,
                    prompt_hop_seconds=HOP_LATENCY_S + moved * self.mean_prompt_tokens,
                )
            )
        return stages

    def errors(self, costs: Predictor) -> PipelineErrors:
        """Compare with the measured rate and latencies.

        A number in flight that is not whole lies between the next two.

        Raises
        ------
        InvalidValue
            The cost model has no such GPU, or the stages are not the model's layers.
        UnknownName
            There is no such model.
        """
        stages, number = self.timed(costs), self.in_flight
        fewer = max(1, math.floor(number))
        share = max(0.0, number - fewer)
        low, high = (simulate_dynamic(stages, n, self.answer_tokens) for n in (fewer, fewer + 1))
        rate, token, prompt = ((1 - share) * a + share * b for a, b in zip(low, high, strict=True))
        merged, _ = merged_rate(stages, number, self.answer_tokens)
        return PipelineErrors(
            rate_error=rate / self.decode_tokens_per_s - 1,
            latency_error=token / self.decode_latency_mean_s - 1,
            prompt_latency_error=prompt / self.prompt_latency_mean_s - 1,
            merged_rate_error=merged / self.decode_tokens_per_s - 1,
            synchronous_rate_error=self.synchronous(stages) / self.decode_tokens_per_s - 1,
        )

    def synchronous(self, stages: list[DynamicStage]) -> float:
        """Tokens/s of the best number of equal microbatches."""
        rates = []
        for number in range(1, max(1, math.floor(self.in_flight)) + 1):
            batch = self.in_flight / number
            passes = [s.decode_seconds(max(1.0, batch / s.copies)) for s in stages]
            through = math.fsum(passes) + math.fsum(s.hop_seconds for s in stages)
            rates.append(min(batch / max(passes), self.in_flight / through))
        return max(rates)


@lru_cache(maxsize=4)
def synchronous_share(costs: Predictor) -> tuple[int, float]:
    """Return how many pipelines were measured, and the share of the synchronous rate that they had in the median."""
    rows = read_objects(data_dir() / "pipelines_measured.csv", PipelineRun)
    shares = [run.decode_tokens_per_s / run.synchronous(run.timed(costs)) for _, run in rows]
    return len(shares), float(np.median(shares))


_errors_of = lru_cache(maxsize=64)(PipelineRun.errors)  # each simulates a whole pipeline


def pipeline_rows(costs: Predictor, path: Path) -> DataFrame:
    """Return a file with the columns of `data/pipelines_measured.csv` with the `PipelineErrors` of every row.

    Raises
    ------
    InvalidData
        Naming the file, the row and the column.
    """
    table = frame_of(path, "run").reset_index()
    rows = of_known_models(read_objects(path, PipelineRun))
    errors = [place(row, {}, partial(_errors_of, one, costs)) for row, one in rows]
    table[list(PipelineErrors._fields)] = errors
    return table
