"""What a roofline starts from: facts of GPUs, constants of engines, and its few options."""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Annotated, Literal, Self, cast

from annotated_types import MinLen

from pipelab.errors import UnknownName, nearest
from pipelab.fields import Flag, Later, NotNegative, Share, checked, described
from pipelab.hardware.engines import Engine, load_engines
from pipelab.hardware.known_gpus import GPUFacts, load_gpus

TRAINER = "Megatron"  # trains where the engine is one for inference


@checked
class RooflineConstants:
    """The fields of `Roofline`, which describes them, and the same with another engine or speed."""

    gpus: Annotated[
        Mapping[str, GPUFacts],
        MinLen(1),
        described("at least one type of GPU, or None for all known"),
        Later,
    ] = cast(Mapping[str, GPUFacts], None)
    engine: str = "vLLM"
    engines: Annotated[
        Mapping[str, Engine],
        MinLen(1),
        described("at least one engine, or None for all known"),
        Later,
    ] = cast(Mapping[str, Engine], None)
    hop_latency_s: NotNegative = 1e-5
    memory_share: Share = 0.9
    tensor_parallel: Flag = True
    prefer: Literal["rate", "time"] = "rate"

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", load_gpus() if self.gpus is None else dict(self.gpus))
        engines = load_engines() if self.engines is None else dict(self.engines)
        object.__setattr__(self, "engines", engines)
        if self.engine not in engines:
            raise UnknownName(
                f"there is no engine {self.engine!r}; {nearest(self.engine, engines)}"
            )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        numbers = [getattr(self, f.name) for f in fields(self) if f.name not in ("gpus", "engines")]
        return hash((tuple(self.gpus.items()), self.constants, *numbers))

    @property
    def constants(self) -> Engine:
        """Those of the engine that runs."""
        return self.engines[self.engine]

    def running(self, engine: str) -> Self:
        """The same with another of its engines.

        Parameters
        ----------
        engine : str
            One of `engines`.

        Returns
        -------
        Roofline
            This one itself, if it is its engine.
        """
        return self if engine == self.engine else replace(self, engine=engine)

    def for_training(self) -> Self:
        """The same with an engine that trains: its own, or else Megatron, as inference engines do not.

        Returns
        -------
        Roofline
            This one itself, if its engine trains (`Engine.gradient_bytes`).
        """
        return self._trained

    @cached_property
    def _trained(self) -> Self:
        if self.constants.gradient_bytes is not None:
            return self
        engines = {TRAINER: load_engines()[TRAINER], **self.engines}
        return replace(self, engines=engines, engine=TRAINER)

    def for_phase(self, phase: str) -> Self:
        """The same as it runs a workload of this phase: in training `for_training`.

        Parameters
        ----------
        phase : str
            As in `Workload`.

        Returns
        -------
        Roofline
            This one itself, unless it trains.
        """
        return self.for_training() if phase == "training" else self

    def with_speed(self, gpu_type: str, speed: float) -> Self:
        """The same with one type of GPU that computes, and moves bytes, so many times as fast.

        Parameters
        ----------
        gpu_type : str
            One of `gpu_types`.
        speed : float
            Above 0.

        Returns
        -------
        Roofline
            What the engine adds to every layer and step stays.
        """
        facts = self.gpus[gpu_type]
        changed = replace(
            facts,
            fp16_tflop_per_s=facts.fp16_tflop_per_s * speed,
            fp16_accumulate_tflop_per_s=_times(facts.fp16_accumulate_tflop_per_s, speed),
            fp8_tflop_per_s=_times(facts.fp8_tflop_per_s, speed),
            memory_bandwidth_gb_per_s=facts.memory_bandwidth_gb_per_s * speed,
        )
        return replace(self, gpus={**self.gpus, gpu_type: changed})

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types this model knows."""
        return tuple(self.gpus)


def _times(peak: float | None, speed: float) -> float | None:
    return None if peak is None else peak * speed
