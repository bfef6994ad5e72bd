"""A plan as an engine needs it: layers, hosts, ranks, data type, context."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, groupby, pairwise
from typing import NamedTuple

from pipelab.display import counted
from pipelab.engine.runs_on import as_engine_runs, counting_memory_of
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.serving.lines import chunk_of_engine
from pipelab.errors import InvalidPlacement, InvalidValue, NotApplicable
from pipelab.evaluation import Evaluation, evaluate, tally
from pipelab.fields import Frozen, is_list
from pipelab.hardware.engine_memory import engine_counted, memory_of
from pipelab.hardware.engine_rules import platform_of, rules_of
from pipelab.hardware.known_gpus import load_gpus
from pipelab.placement import Placement, named_layers
from pipelab.problem import Problem
from pipelab.schedules import Schedule

# Types without bf16 by how their names begin: compute capability below 8.0 (Kepler to Turing).
# https://docs.nvidia.com/cuda/cuda-c-programming-guide: bf16 arithmetic from 8.0 on.
_WITHOUT_BF16 = ("T4", "V100", "P100", "P40", "P4", "K80", "M60", "T10", "RTX20", "GTX", "TITAN")
# The first visible GPU by llama.cpp's name: GGML_CUDA_NAME (ggml/include/ggml-cuda.h), GGML_METAL_NAME
# (ggml/src/ggml-metal/ggml-metal.cpp).
_DEVICES = {"CUDA": "CUDA0", "ROCm": "ROCm0", "Metal": "MTL0"}
_SHARE_STEP = 0.01  # in which engines are told their share of a GPU
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Hosts = str | Sequence[str] | None


@dataclass(frozen=True)
class Host(Frozen):
    """One machine of a plan.

    Attributes
    ----------
    name : str
        As the cluster has it, or the address given.
    address : str
        Empty where none was given.
    gpus : tuple of int or str
        The GPUs used, in the order of the ranks, as this host calls them: numbers, or UUIDs.
    """

    name: str
    address: str
    gpus: tuple[int | str, ...]


class LaunchCommand(NamedTuple):
    """Consecutive ranks that one command starts on one host.

    Attributes
    ----------
    number : int
        From 0.
    host : int
        From 0.
    gpus : tuple of int or str
        As that host calls them, in the order of the ranks.
    """

    number: int
    host: int
    gpus: tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """A plan as ranks on hosts. Rank s · size + i is GPU i of stage s.

    Attributes
    ----------
    problem : Problem
    evaluation : Evaluation
    engine : str
    hosts : tuple of Host
        In the order of their first ranks.
    places : tuple of (int, int or str)
        For every rank, its host (from 0) and its GPU as that host calls it.
    schedule : Schedule or None
        The schedule of a training step with these stages, if one was given.
    recomputed : tuple of str
        What each stage of a training step computes a second time: "none", "selective" or "full".
    pipeline : int
        Which pipeline of a deployment it is, from 1; 0: it is the only one.
    simulated_chunk : int or None
        Tokens of a batch with which requests were simulated, if they were.
    """

    problem: Problem
    evaluation: Evaluation
    engine: str
    hosts: tuple[Host, ...]
    places: tuple[tuple[int, int | str], ...]
    schedule: Schedule | None = None
    recomputed: tuple[str, ...] = ()
    pipeline: int = 0
    simulated_chunk: int | None = None

    @classmethod
    def of(
        cls, problem: Problem, placement: Placement, engine: str, hosts: Hosts, pipeline: int = 0
    ) -> "EnginePlan":
        """Place a plan on its hosts.

        Raises
        ------
        InvalidPlacement
            The placement is not valid for this problem, or what the engine keeps in memory leaves too little for it.
        InvalidValue
            `hosts` does not fit.
        """
        try:  # GPUs of a stage cut its layers where they can
            evaluation = evaluate(as_engine_runs(problem, engine), placement)
        except InvalidPlacement:
            evaluate(problem, placement)
            try:
                evaluation = evaluate(counting_memory_of(problem, engine), placement)
            except InvalidPlacement as error:
                remedy = f"{engine} keeps some of it for itself: solve with runs_on={engine!r}, or a smaller batch"
                raise InvalidPlacement([*error.defects, remedy]) from None
        names, given = _hosts(problem, hosts)
        local = _numbers(problem, names, hosts)
        number = {name: i for i, name in enumerate(dict.fromkeys(names[g] for g in placement.gpus))}
        places = tuple((number[names[g]], local[g]) for g in placement.gpus)
        machines = tuple(
            Host(name, name if given else "", tuple(gpu for host, gpu in places if host == i))
            for name, i in number.items()
        )
        return cls(
            problem=problem,
            evaluation=evaluation,
            engine=engine,
            hosts=machines,
            places=places,
            pipeline=pipeline,
        )

    @property
    def size(self) -> int:
        """GPUs of every stage."""
        return len(self.evaluation.stages[0].stage.gpus)

    @property
    def recompute(self) -> str:
        """What every stage of a training step computes a second time."""
        return [*self.recomputed, "none"][0]

    @property
    def types(self) -> list[str]:
        """Types of the GPUs in use."""
        return list(dict.fromkeys(t for r in self.evaluation.stages for t in r.gpu_types))

    def port(self, first: int, each: int = 1) -> int:
        """Return a port that no other pipeline of the deployment has if each takes `each` ports from `first` on."""
        return first + each * max(0, self.pipeline - 1)

    @property
    def layers(self) -> tuple[int, ...]:
        """Decoder layers of each stage."""
        return tuple(len(report.stage.layers) for report in self.evaluation.stages)

    @property
    def parts(self) -> tuple[range, ...]:
        """Decoder layers of each part of the model, in its order: a stage, or a chunk of one.

        With several chunks per rank each part has as many layers as its rank has divided by its
        chunks, and so other layers than the plan's stages: those of the model are dealt out anew.
        """
        order = self.schedule
        sizes = self.layers if order is None else columns_of(order).part_layers(self.layers)
        return tuple(range(*pair) for pair in pairwise([0, *accumulate(map(int, sizes))]))

    @property
    def context(self) -> int:
        """Tokens that one sequence may reach: what it starts from, and those written after."""
        load = self.problem.workload
        return load.sequence_length + (load.written or 1)

    @property
    def cache_tokens(self) -> int:
        """Tokens of the whole blocks that the engine keeps for one sequence."""
        block = memory_of(self.engine).cache_tokens
        return -(-self.context // block) * block

    @property
    def sequences(self) -> int:
        """Sequences whose KV cache the plan holds: of every microbatch in flight."""
        load, chosen = self.problem.workload, self.evaluation.in_flight
        sequences = load.batch_size * (load.in_memory if chosen is None else chosen)
        return min(sequences, rules_of(self.engine).sequences or sequences)

    @property
    def memory_share(self) -> float:
        """Share of a GPU's memory that the engine may take.

        What the cost model left to it (`Roofline.memory_share`); else what the plan needs on its fullest GPU, rounded
        up, and at least 0.9; but no more than is free when the engine starts.
        """
        share = self.problem.costs.memory_share
        if share is None:
            needs = [
                need / offer
                for report in self.evaluation.stages
                for need, offer in zip(report.memory_gb, report.memory_limit_gb, strict=True)
            ]
            share = max(0.9, math.ceil(round(max(needs) * 100, 6)) / 100)
        most = memory_of(self.engine).most_share(self.problem.cluster.kinds)
        return min(_rounded_down(most), float(share))

    @property
    def free_shares(self) -> list[float]:
        """For every rank, the memory of its GPU over what the type has: less than 1 where some is taken."""
        as_sold, seen = self.problem.costs.memory_as_sold, memory_of(self.engine).seen_gb
        return [
            1.0 if (whole := as_sold(kind)) is None else seen(kind, offer) / seen(kind, whole)
            for report in self.evaluation.stages
            for kind, offer in zip(report.gpu_types, report.memory_limit_gb, strict=True)
        ]

    @property
    def shares(self) -> list[float]:
        """For every start, the share of all memory that drivers show, which leaves what is taken on its fullest GPU."""
        shares, per_command = self.free_shares, len(self.starts[0].gpus)
        least = [min(shares[i : i + per_command]) for i in range(0, len(shares), per_command)]
        # Drivers of some GPUs keep some MiB more; less than a step makes no difference (`host_listings`).
        return [
            _rounded_down(self.memory_share * free) if free < 1 - _SHARE_STEP else self.memory_share
            for free in least
        ]

    @property
    def memory_counts(self) -> bool:
        """Whether what the engine itself keeps in memory is counted."""
        return bool(engine_counted(counting_memory_of(self.problem, self.engine).costs))

    @property
    def chunk(self) -> int | None:
        """Tokens of a batch with prompts: simulated, or else those for which memory counts; None if nothing says."""
        gpus = [gpu for report in self.evaluation.stages for gpu in report.stage.gpus]
        problem, chunk = counting_memory_of(self.problem, self.engine), self.simulated_chunk
        most = int(chunk_of_engine(problem, gpus, self.sequences) or 0)
        if chunk is not None and not self.sequences <= chunk <= (most or chunk):
            expected = f"expected {self.sequences}, one for each sequence, to {most}, for which memory counts"
            raise self.refuse("chunk", chunk, expected)
        return chunk or most or None

    @property
    def without_bf16(self) -> list[str]:
        """Types of GPU in use that do not compute in bf16."""
        return [kind for kind in self.types if kind.startswith(_WITHOUT_BF16)]

    @property
    def runs(self) -> list[tuple[int, list[int | str]]]:
        """Consecutive ranks on one host: the host (from 0), and the GPUs as it calls them."""
        runs = groupby(self.places, key=lambda place: place[0])
        return [(host, [gpu for _, gpu in ranks]) for host, ranks in runs]

    @property
    def starts(self) -> list[LaunchCommand]:
        """As few starts as there can be: each has whole stages, or equal parts of one, and all have as many ranks.

        Engines number ranks start by start. So stages may come back to a host, and hosts may have different numbers of
        GPUs, if a host has several starts.
        """
        numbers = [len(gpus) for _, gpus in self.runs]
        per_command = math.gcd(*numbers)
        of_all = memory_of(self.engine).share_of == "all"  # a start has one share
        several = of_all and max(self.free_shares) - min(self.free_shares) > _SHARE_STEP
        if several or per_command % self.size:
            per_command = math.gcd(per_command, self.size)
        parts = [
            (host, gpus[i : i + per_command])
            for host, gpus in self.runs
            for i in range(0, len(gpus), per_command)
        ]
        return [
            LaunchCommand(number, host, tuple(gpus)) for number, (host, gpus) in enumerate(parts)
        ]

    def gpu_lines(self) -> list[str]:
        """List every GPU that nvidia-smi shows: its host (from 1), what that calls it, and the names it may have."""
        kinds = [kind for report in self.evaluation.stages for kind in report.gpu_types]
        facts = load_gpus()
        names = {kind: facts[kind].driver_names if kind in facts else "" for kind in kinds}
        return [
            f"{host + 1} {gpu} {names[kind]}".rstrip()
            for (host, gpu), kind in zip(self.places, kinds, strict=True)
            if platform_of(kind) == "CUDA"
        ]

    def visible(self, host: int) -> str:
        """Name the variable that makes a host's GPUs visible.

        Of ROCm's variables this is the one that engines ask for (vllm/platforms/rocm.py; vLLM pull request 46636).
        """
        kinds = [kind for report in self.evaluation.stages for kind in report.gpu_types]
        types = {kind for kind, place in zip(kinds, self.places, strict=True) if place[0] == host}
        if {platform_of(kind) for kind in types} == {"ROCm"}:
            return "HIP_VISIBLE_DEVICES"
        return "CUDA_VISIBLE_DEVICES"

    @property
    def weights(self) -> str:
        """Precision of the weights; empty if the model does not say."""
        return self.problem.model.precision

    def dtype(self, half: str = "half") -> str:
        """Return the data type of activations, by the names of vLLM and SGLang."""
        if self.without_bf16:
            return half
        return {"bf16": "bfloat16", "fp16": half, "fp32": "float32"}.get(self.weights, "auto")

    def refuse(self, field: str, value: object, expected: str) -> NotApplicable:
        """Make an error of what this engine cannot do."""
        return NotApplicable("settings", [(field, value, f"{self.engine}: {expected}")])

    def stage_lines(self) -> list[str]:
        """Describe every stage for a reader: its layers, its GPUs and their hosts."""
        lines = []
        for s, report in enumerate(self.evaluation.stages):
            used: dict[int, list[int | str]] = {}
            for host, gpu in self.places[s * self.size : (s + 1) * self.size]:
                used.setdefault(host, []).append(gpu)
            where = " and ".join(
                f"GPU {', '.join(map(str, gpus))} of host {host + 1} = {self.hosts[host].name}"
                for host, gpus in used.items()
            )
            layers, types = named_layers(report.stage.layers), tally(report.gpu_types)
            lines.append(f"stage {s + 1}: {layers} on {types}: {where}")
        return lines

    def notes(self) -> list[str]:
        """List what a reader must know that no setting says."""
        notes = []
        if self.without_bf16 and self.weights in ("bf16", "fp32"):
            types = ", ".join(self.without_bf16)
            notes.append(f"{types} has no bf16, and one engine has one data type: half")
        if self.weights in ("fp8", "int8", "int4"):
            notes.append(f"take a checkpoint with weights in {self.weights}")
        if not self.memory_counts:
            notes.append(
                f"what {self.engine} itself keeps in memory is not counted: if it runs out, plan with a smaller batch"
            )
        if self.engine == "vLLM" and min(self.shares) < self.memory_share:
            notes.append(
                f"memory is taken on a GPU, which leaves {min(self.free_shares):.0%} of it; "
                "--gpu-memory-utilization is a share of all, so it is as much smaller there"
            )
        return notes + self._notes_on_batches()

    def _notes_on_batches(self) -> list[str]:
        """List how the engine's batches differ from the plan's microbatches."""
        rules, has, stages = rules_of(self.engine), self.evaluation.in_flight, len(self.layers)
        more = rules.filling_number if stages > 1 else 0
        by_stages = has if more == "told" else stages + more
        reads = stages > 1 and self.problem.workload.phase == "prefill"
        limits = {"by_stages": by_stages, "micro_batches": has if reads else 1, "one": 1}
        most = limits.get(rules.filling)
        notes = [rules.batches] if rules.batches and stages > 1 else []
        if has is not None and most is not None and most < has:
            fewer = replace(self.evaluation, in_flight=most).attainable
            sequences = counted(self.problem.workload.batch_size, "sequence")
            notes.append(
                f"{self.engine} keeps at most {most} of the plan's {has} microbatches in flight, which yield "
                f"{fewer:,.7g} of its {self.evaluation.attainable:,.7g} tokens/s if each has {sequences}"
            )
        return notes


def _rounded_down(share: float) -> float:
    return math.floor(share * 1e4) / 1e4


def _hosts(problem: Problem, hosts: Hosts) -> tuple[list[str], bool]:
    """Return the host of every GPU of the cluster, and whether these are addresses."""
    gpus = problem.cluster.gpus
    if hosts is None:
        return [gpu.host or f"GPU {i} ({gpu.type})" for i, gpu in enumerate(gpus)], False
    expected = f"expected an address, or one for each of the {len(gpus)} GPUs of the cluster, such as '10.0.0.1'"
    names = [hosts] * len(gpus) if isinstance(hosts, str) else list(hosts) if is_list(hosts) else []
    if len(names) != len(gpus):
        raise InvalidValue("settings", [("hosts", hosts, expected)])
    for name in names:
        if not isinstance(name, str) or not _ADDRESS.fullmatch(name):
            raise InvalidValue("settings", [("hosts", name, expected)])
    return names, True


def _numbers(problem: Problem, names: Sequence[str], hosts: Hosts) -> list[int | str]:
    """Return what the host of every GPU calls it: as the cluster says, or else counted on each host from 0."""
    index = problem.cluster.index
    if not index:
        numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
        return [next(numbers[name]) for name in names]
    first: dict[tuple[str, int | str], int] = {}
    for gpu, place in enumerate(zip(names, index, strict=True)):
        if first.setdefault(place, gpu) != gpu:
            both = f"GPUs {first[place]} and {gpu} both have the index {place[1]} there"
            expected = f"expected the addresses of two machines: {both}"
            raise InvalidValue("settings", [("hosts", hosts, expected)])
    return list(index)


def rpc_servers(plan: EnginePlan) -> list[dict[str, object]]:
    """List llama.cpp's servers: one for each GPU that is not beside the last stage, each with its own port."""
    servers: list[dict[str, object]] = []
    ports: dict[int, int] = {}  # of every host, so far
    kinds = [kind for report in plan.evaluation.stages for kind in report.gpu_types]
    served = plan.places[: len(plan.places) - len(plan.runs[-1][1])]
    for (host, gpu), kind in zip(served, kinds, strict=False):
        ports[host] = ports.get(host, plan.port(50052, 16) - 1) + 1
        server: dict[str, object] = {"host": host, "gpu": gpu, "port": ports[host]}
        several = len(plan.hosts) > 1
        server["address"] = f"${{host[{host + 1}]}}" if several else "127.0.0.1"
        server["place"] = f"{server['address']}:{ports[host]}"
        server["device"] = _DEVICES[platform_of(kind)]
        servers.append(server)
    return servers
