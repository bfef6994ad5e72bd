"""What each engine demands of a plan: the table data/engine_rules.csv, one row per engine."""

import re
from collections.abc import Iterator
from typing import Literal

from pipelab.cluster import Cluster
from pipelab.errors import UnknownName, nearest, shown
from pipelab.fields import Count, Natural, checked
from pipelab.files.csv_rows import bundled_by_name
from pipelab.problem import ModelLike

_PLATFORMS = {r"MI\d": "ROCm", r"M\d\b": "Metal"}  # of other makers than NVIDIA


@checked
class EngineRules:
    """The demands of an engine on a plan: a row of data/engine_rules.csv. Lists have spaces between.

    Parameters
    ----------
    platforms : str
        On which it runs: CUDA, ROCm, Metal.
    one_maker : bool
        Whether all GPUs must be of one maker, since its ranks share one library.
    precisions : str
        In which it has weights; empty if it takes any.
    kv_precisions : str
        In which it keeps keys and values; empty if it keeps none.
    equal_stages : bool
        Whether every stage must have the same number of GPUs.
    heads_divide : bool
        Whether that number must divide the model's attention heads.
    cut_alone, one_host : bool
        Whether GPUs cut layers only where one stage has all layers, and all stages must be on one host; `why` says
        the reason.
    gpus, sequences : int, optional
        How many there may be at most.
    numbered : bool
        Whether it takes GPUs by their numbers, and not by UUIDs.
    trains : bool
        Whether it takes a training step and not a serving plan.
    schedules : str
        The only ones that it has for one stage per rank; empty if it takes any.
    filling : {"synchronous", "by_stages", "dynamic", "micro_batches", "one", ""}
        How it fills a pipeline (docs/fillings.md); empty if a schedule says so.
    filling_number : int or "told"
        As `CostModel.filling_number`; "told" if its script says how many it keeps in flight.
    preempts : bool
        Whether a sequence loses its keys and values where there is no room for another's next token.
    whole_batches : bool
        Whether nobody joins a batch until all its answers are complete.
    batches : str
        How it makes up the batches of several stages, where these are not the plan's microbatches.
    tokens_option : str
        The option with the most tokens of a batch that has prompts in it; empty if it has none.
    why : str
        The reason for one GPU in every stage of several, or for one host.
    source : str
        Where the engine's code or documentation says so.
    """

    platforms: str
    one_maker: bool
    equal_stages: bool
    heads_divide: bool
    cut_alone: bool
    one_host: bool
    trains: bool
    source: str
    precisions: str = ""
    kv_precisions: str = ""
    gpus: Count | None = None
    sequences: Count | None = None
    numbered: bool = False
    schedules: str = ""
    filling: Literal["synchronous", "by_stages", "dynamic", "micro_batches", "one", ""] = ""
    filling_number: Literal["told"] | Natural = 0
    preempts: bool = False
    whole_batches: bool = False
    batches: str = ""
    tokens_option: str = ""
    why: str = ""


def known_rules() -> dict[str, EngineRules]:
    """Return the rules of every engine, by its name."""
    return bundled_by_name("engine_rules.csv", "engine", EngineRules)


def rules_of(engine: object, option: str = "engine") -> EngineRules:
    """Return the rules of an engine, which is given as the option of this name.

    Raises
    ------
    UnknownName
        There is no such engine.
    """
    known = known_rules()
    if not isinstance(engine, str) or engine not in known:
        raise UnknownName(f"{option}: there is no engine {shown(engine)}; {nearest(engine, known)}")
    return known[engine]


def not_taken(
    model: ModelLike, cluster: Cluster, rules: EngineRules
) -> Iterator[tuple[str, str, str]]:
    """List what an engine does not take, whatever the plan: field, value, and what was expected."""
    for field, names in (("precision", rules.precisions), ("kv_precision", rules.kv_precisions)):
        value, known = getattr(model, field), names.split()
        if known and value and value not in known:
            kept = "weights" if field == "precision" else "keys and values"
            expected = f"expected one of {', '.join(known)}: it has {kept} in no other"
            yield f"model.{field}", value, f"{expected}; give load_model such a {field}"
    named = [name for name in cluster.index if isinstance(name, str)]
    if rules.numbered and named:
        expected = "expected numbers, such as those of nvidia-smi's column index: it takes no UUIDs"
        yield "cluster.index", named[0], expected


def platform_of(gpu_type: str) -> str:
    """Return the platform of a type of GPU.

    >>> platform_of("A100-SXM-80"), platform_of("MI300X"), platform_of("M3-Max-40c")
    ('CUDA', 'ROCm', 'Metal')
    """
    return next((p for pattern, p in _PLATFORMS.items() if re.match(pattern, gpu_type)), "CUDA")
