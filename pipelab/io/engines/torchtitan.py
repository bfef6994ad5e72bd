"""torchtitan: the modules of every stage, the schedule by name or as a table, one `torchrun` per host."""

from pipelab.io.engines import launch_script as script
from pipelab.io.engines.deployment import EnginePlan
from pipelab.io.schedule_files import to_csv

_PORT = 29500
# torch's own names of schedules with one stage per rank; it runs any other from a table of actions.
_BY_NAME = ("1F1B", "GPipe")


def torchtitan_launch(plan: EnginePlan) -> script.EngineSettings:
    """The plan's cuts, schedule and microbatches for training with torchtitan.

    Notes
    -----
    Written for torchtitan 0.3.0. `ParallelismConfig` (torchtitan/config/configs.py) has the options;
    `list_str_rule` (torchtitan/config/manager.py) reads a list of modules with commas between. The
    modules of each stage are kept by `_split_module`, and stage s belongs to rank s of the pipeline
    by `_get_pp_rank_to_stage_indices_mapping` (torchtitan/distributed/pipeline_parallel.py).
    `_build_pipeline_schedule` there divides `local_batch_size` into microbatches, and runs a table
    of actions by torch's `_PipelineScheduleRuntime`. Ranks of tensor parallelism are neighbours and
    stages are not: `ParallelDims.build_mesh` has pipeline stages as its first dimension.
    """
    order, load = plan.schedule, plan.problem.workload
    table = order is not None and order.name not in _BY_NAME
    name = "1F1B" if order is None else "PipelineScheduleMulti" if table else order.name
    if order is not None:
        microbatches = order.microbatches
    else:
        microbatches = load.microbatches if load.phase == "training" else 4 * len(plan.layers)
    arguments = _options(
        "parallelism",
        pipeline_parallel_degree=len(plan.layers),
        tensor_parallel_degree=plan.size,
        data_parallel_shard_degree=1,
        pipeline_parallel_schedule=name,
        pipeline_parallel_microbatch_size=load.batch_size,
    )
    arguments += _options(
        "training",
        local_batch_size=load.batch_size * microbatches,
        seq_len=load.sequence_length,
    )
    modules = ["--parallelism.module_fqns_per_model_part", *map(",".join, _modules(plan.layers))]
    options, written = script.pairs(arguments), []
    if order is not None and table:
        options.append('--parallelism.pipeline_parallel_schedule_csv "$SCHEDULE"')
        written = ["SCHEDULE=$(mktemp --suffix=.csv)", 'cat > "$SCHEDULE" <<END']
        written += [*to_csv(order).splitlines(), "END"]
    program = ["-m torchtitan.train", '--module "${CONFIG%.*}" --config "${CONFIG##*.}"']
    program += [*options, " ".join(modules)]
    commands = script.torchrun(plan, plan.port(_PORT), written, *program)
    return script.finished(
        plan,
        {},
        [*arguments, *modules],
        commands,
        model="CONFIG=${CONFIG:?set CONFIG to a module and its config, such as llama3.llama3_8b}",
        serves=False,
        notes=_notes(plan, microbatches),
    )


def _options(section: str, **values: object) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{section}.{name}", str(value))]


def _modules(layers: tuple[int, ...]) -> list[list[str]]:
    """The module names of every stage: embedding first, norm and head last."""
    numbered = iter(range(sum(layers)))
    stages = [[f"layers.{next(numbered)}" for _ in range(count)] for count in layers]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", "lm_head"]
    return stages


_RECOMPUTED = {
    "none": "without recomputation, activation_checkpoint=None",
    "selective": "without recomputation: fused attention, which it uses, recomputes scores already",
    "full": "with recomputation of whole layers, activation_checkpoint=FullAC.Config()",
}


def _notes(plan: EnginePlan, microbatches: int) -> list[str]:
    notes = [f"take the model's config {_RECOMPUTED[plan.recompute]}"]
    if plan.schedule is None:
        notes.append(
            f"no schedule was given: 1F1B with {microbatches} microbatches; "
            "pass what timeline_of(…, training=True) returns for another"
        )
    if plan.problem.workload.phase in ("decode", "mixed"):
        notes.append(
            f"the plan was made for {plan.problem.workload.phase}, whose best cut is not that of training"
        )
    if plan.without_bf16:
        notes.append(
            f"{', '.join(plan.without_bf16)} has no bf16: add --training.mixed_precision_param float32"
        )
    return notes
