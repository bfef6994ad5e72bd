"""The plans that an engine refuses, by its row of data/engine_rules.csv."""

from collections.abc import Iterator

from pipelab.display import counted
from pipelab.hardware.engine_rules import EngineRules, not_taken, platform_of, rules_of
from pipelab.io.serving.engine_plan import EnginePlan
from pipelab.schedules import Schedule

_Broken = tuple[str, object, str]  # a field, its value, and what was expected


def check(plan: EnginePlan) -> None:
    """Refuse a plan that breaks a rule of its engine.

    Raises
    ------
    NotApplicable
        Names the first rule that is broken.
    """
    for field, value, expected in _broken(plan, rules_of(plan.engine)):
        raise plan.refuse(field, value, expected)


def _broken(plan: EnginePlan, rules: EngineRules) -> Iterator[_Broken]:
    """List the rules that a plan breaks: a field, its value, and what was expected."""
    yield from _broken_by_stages(plan, rules)
    makers = {kind: platform_of(kind) for kind in plan.types}
    for kind, platform in makers.items():
        if platform not in rules.platforms.split():
            yield "GPU type", kind, f"expected GPUs of {' or '.join(rules.platforms.split())}"
    if rules.one_maker and len(set(makers.values())) > 1:
        yield "GPU types", plan.types, "expected GPUs of one maker: its ranks share one library"
    yield from not_taken(plan.problem.model, plan.problem.cluster, rules)
    if plan.schedule is not None:
        yield from _broken_by_step(plan, plan.schedule, rules)
    if rules.cut_alone and plan.size > 1 and max(len(plan.layers), len(plan.hosts)) > 1:
        expected = f"expected one GPU in every stage, or one stage on one host: {rules.why}"
        yield "GPUs per stage", plan.size, expected
    if rules.one_host and len(plan.hosts) > 1:
        yield "hosts", len(plan.hosts), f"expected stages on one host: {rules.why}"
    if rules.gpus is not None and len(plan.places) > rules.gpus:
        yield "GPUs", len(plan.places), f"expected at most {rules.gpus}: it takes no more devices"
    batch = plan.problem.workload.batch_size
    if rules.sequences is not None and batch > rules.sequences:
        yield "batch_size", batch, f"expected at most {rules.sequences}: it has no more sequences"


def _broken_by_stages(plan: EnginePlan, rules: EngineRules) -> Iterator[_Broken]:
    """List the rules that stages of different sizes, or with copies of their layers, break."""
    reports = plan.evaluation.stages
    sizes = [len(report.stage.gpus) for report in reports]
    for size in sizes:
        heads = plan.problem.model.heads
        if rules.heads_divide and heads % size:
            expected = f"expected stages of a number of GPUs that divides the model's {heads} heads"
            yield "GPUs per stage", size, expected
    for i, (report, size) in enumerate(zip(reports, sizes, strict=True), 1):
        if report.degree != size:
            shares = "equal" if len(set(report.batch)) == 1 else "unequal"
            expected = (
                "expected stages of one GPU, or whose GPUs all cut every layer among them (tensor parallel); in "
                f"stage {i}, {counted(size, 'GPU')} hold {size // report.degree} copies of its layers and take "
                f"{shares} shares of the batch (data parallel), which no engine does for one stage; solve with "
                f"--runs-on {plan.engine} or runs_on={plan.engine!r} for the best plan that it can start"
            )
            yield "GPUs of a stage", report.stage.gpus, expected
    usual = max(dict.fromkeys(sizes), key=sizes.count)
    if rules.equal_stages and len(set(sizes)) > 1:
        odd = next(i for i, size in enumerate(sizes) if size != usual)
        expected = (
            "expected as many GPUs in every stage, since one engine has one tensor-parallel size; stage "
            f"{odd + 1} has {sizes[odd]} where {sizes.count(usual)} of {len(sizes)} stages have {usual}; "
            f"solve with --runs-on {plan.engine} or runs_on={plan.engine!r} for the best plan that it can start"
        )
        yield "GPUs per stage", tuple(sizes), expected


def _broken_by_step(plan: EnginePlan, schedule: Schedule, rules: EngineRules) -> Iterator[_Broken]:
    """List the rules that a training step breaks."""
    stages = len(plan.layers)
    if not rules.trains:
        expected = "expected Megatron or torchtitan for a training step: it serves"
        yield "placement", schedule.name, expected
    if schedule.ranks != stages:
        expected = f"expected one for {counted(stages, 'rank')}, as the plan has stages"
        yield "schedule", schedule.name, expected
    elif schedule.chunks > 1:
        yield from _broken_by_chunks(plan, schedule)
    if len(set(plan.recomputed)) > 1:
        expected = (
            "expected the same on every stage, since one engine has one choice for all layers; "
            'solve with recompute="none" or "full"'
        )
        yield "recompute", plan.recomputed, expected
    known = rules.schedules.split()
    if known and schedule.chunks > 1 and schedule.microbatches < schedule.ranks:
        expected = f"expected at least {schedule.ranks}, one for each rank, where chunks interleave"
        yield "microbatches", schedule.microbatches, expected
    if known and schedule.name not in known:
        names = " or ".join(map(repr, known))
        yield "schedule", schedule.name, f"expected {names}, which is all that it has"


def _broken_by_chunks(plan: EnginePlan, schedule: Schedule) -> Iterator[_Broken]:
    """List what keeps a plan's stages from being cut into the chunks of a schedule (`EnginePlan.parts`)."""
    chunks = schedule.chunks
    if schedule.stage_rank != tuple(part % schedule.ranks for part in range(schedule.stages)):
        expected = "expected chunks that go round the ranks, or one per rank: it deals them out so"
        yield "schedule", schedule.name, expected
    for layers in plan.layers:
        if layers < chunks:
            expected = f"expected stages of at least {chunks} layers, one for each chunk"
            yield "layers of a stage", layers, expected
