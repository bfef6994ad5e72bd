"""The commands about a problem: plans (solve, deploy, evaluate, settings), or tables (trade-off, compare, sweep, …)."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from pipelab.cli.commands import problem_options
from pipelab.cli.commands.problem_options import Case, Json, Real, Text, Wanted, Whole, option
from pipelab.cli.printing import print_deployment, print_evaluation, print_result, say, table_text
from pipelab.display import DataFrame
from pipelab.engine.methods import MethodName, ObjectiveName
from pipelab.errors import InvalidValue, nearest
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import NUMBER, read_rows
from pipelab.files.reading_and_writing import write_to

if TYPE_CHECKING:
    from pipelab.engine.answers import Result
    from pipelab.engine.timeline.placement_timelines import TrainingTimeline
    from pipelab.hardware.roofline import Roofline
    from pipelab.hardware.transformer import Transformer
    from pipelab.placement import Placement
    from pipelab.problem import Problem


def _json_path(path: Text) -> Text:
    """Refuse a plan's name before the search, not after it."""
    from pipelab.io.plans import json_path

    if path is not None:
        json_path("save", path)
    return path


_PLAN = ".json"
_ENGINES = read_rows(data_dir() / "engine_rules.csv", ["engine"])
_kept = partial(option, callback=_json_path)
CaseOfPlan = Annotated[Text, option("Of a plan: its case, if the plan does not name it.", "--case")]
RunsOn = Annotated[
    Text, option("The best plan that this engine can start, and what its rules cost; see settings.")
]
Within = Annotated[Real, option("Where the plan turns if speeds are off by this share.", min=0)]
Plan = Annotated[Text, _kept("Write the whole plan, rates included, to this .json file.")]
Budget = Annotated[Real, option("The most that all GPUs may cost, in $ per hour.")]
Schedule = Annotated[Text, option("Of training: 1F1B (the default), ZBH1, …, or best.")]
Recompute = Annotated[Text, option("In training: none (the default), selective, full or auto.")]
Limit = Annotated[Real, option("Seconds; the best by then is kept.", min=0)]
Gap = Annotated[Real, option("Stop when at most this share below the best.", min=0)]
Table = Annotated[Text, option("Write the table to this CSV file, too.")]


def solve(
    context: typer.Context,
    case: Case = None,
    method: Annotated[str, option(f"One of {', '.join(get_args(MethodName))}.")] = "auto",
    objective: Annotated[
        Text,
        option(f"One of {', '.join(get_args(ObjectiveName))}; by default the first, or step_time."),
    ] = None,
    at_least: Annotated[Real, option("With latency or cost: a floor in tokens/s.")] = None,
    budget: Budget = None,
    schedule: Schedule = None,
    recompute: Recompute = None,
    runs_on: RunsOn = None,
    within: Within = None,
    form: Annotated[Text, option("With --method joint: written or tight.")] = None,
    time_limit: Limit = None,
    gap: Gap = None,
    as_json: Json = False,
    output: Plan = None,
) -> None:
    """Find the best placement; exit status 1 where none is found.

    Of a case: pipelab solve tiny. Of a model: pipelab solve --model Llama-3-70B --gpus a100=4,l4=8.
    Ctrl-C ends the search and prints the best so far.
    """
    from pipelab.engine.solving import solve as run

    options: dict[str, Any] = {"form": form, "time_limit": time_limit, "gap": gap}
    options |= {"at_least": at_least, "budget": budget, "runs_on": runs_on}
    options |= {"schedule": schedule, "recompute": recompute}
    options |= {"within": within if objective == "regret" else None}
    problem = context.obj.problem(case)
    result = run(problem, method, objective or objective_of(problem), **_given(options))
    with _kept_in(output, result, result.placement):
        if as_json:
            print(json.dumps(result.to_dict(), allow_nan=False))
            return
        print_result(result)
        if runs_on is not None and result.placement is not None:
            print(result.cost_of_rules().sentence)
        _print_turns(problem, result, within, time_limit)


def deploy(
    context: typer.Context,
    case: Case = None,
    at_least: Annotated[Real, option("A load in tokens/s, served at the least price.")] = None,
    batches: Annotated[
        Text, option("Batch sizes to choose from for each pipeline, such as 4,8,16.")
    ] = None,
    requests: Annotated[
        Real, option("Requests per second, to be served at the least price.", "--requests")
    ] = None,
    ttft_ms: Annotated[Real, option("The longest time to the first token, in ms.")] = None,
    tpot_ms: Annotated[Real, option("The longest time per output token, in ms.")] = None,
    pools: Annotated[
        bool, option("Some GPUs read prompts, the others write answers.", "--pools")
    ] = False,
    runs_on: RunsOn = None,
    within: Within = None,
    time_limit: Limit = None,
    gap: Gap = None,
    as_json: Json = False,
    output: Annotated[Text, _kept("Write the deployment to this .json file.")] = None,
) -> None:
    """Divide the GPUs among pipelines: the most tokens/s, or the least price of a load; exit status 1 where none fits.

    With --requests, a limit or --pools it counts requests, each with a prompt of --length tokens and an
    answer of --output-tokens.

    Such as: pipelab deploy --model Llama-3-8B --gpus a100=8,l4=16 --batches 8,16,32
    """
    from pipelab.engine.deployments.deploying import deploy as run

    options: dict[str, Any] = {"at_least": at_least, "time_limit": time_limit, "gap": gap}
    options |= {"requests_per_s": requests, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms}
    options |= {"pools": pools or None, "runs_on": runs_on}
    if batches is not None:
        options["batches"] = [_whole("deploy", "--batches", size) for size in batches.split(",")]
    problem = context.obj.problem(case)
    deployment = run(problem, **_given(options))
    with _kept_in(output, deployment, deployment.pipelines):
        if as_json:
            print(json.dumps(deployment.to_dict(), allow_nan=False))
            return
        print_deployment(deployment)
        _print_turns(problem, deployment, within, time_limit)


def trade_off(
    context: typer.Context,
    case: Case = None,
    against: Annotated[
        str, option("gpus, usd_per_hour, usd_per_million_tokens or seconds_per_pass.")
    ] = "gpus",
    deployments: Annotated[
        bool, option("Points are deployments, as of deploy.", "--deployments")
    ] = False,
    time_limit: Limit = None,
    as_json: Json = False,
    output: Annotated[Text, _kept("Write every point as a plan to this .json file.")] = None,
) -> None:
    """List every best compromise between throughput and what it costs; exit status 1 where nothing fits."""
    from pipelab.engine.methods.trade_offs import trade_off as run

    problem = context.obj.problem(case)
    curve = run(problem, against, deployments=deployments, **_given({"time_limit": time_limit}))
    with _kept_in(output, curve, curve.points):
        _show(curve.to_frame(), as_json, None, "trade-off")
        if not curve.complete:
            say("points may be missing, or are not proven: give it more time, with --time-limit")


@contextmanager
def _kept_in(output: str | None, answer: Any, plans: object) -> Iterator[None]:
    """Write an answer to a file after it is printed, also where nobody reads on; exit status 1 where it has no plan."""
    from pipelab.io.plans import save

    try:
        yield
    finally:
        if plans and output is not None:
            save(answer, output)
    if not plans:
        raise typer.Exit(1)


def _print_turns(
    problem: "Problem", answer: Any, within: float | None, limit: float | None
) -> None:
    """Print where a plan turns, if that was asked for."""
    from pipelab.engine.speed_scenarios import sensitivity

    if within is not None and answer._goal[0] is not None:
        ends = _given({"time_limit": limit})
        print(sensitivity(problem, answer, within, **ends).sentence)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given; the package's own defaults hold for the others."""
    return {name: value for name, value in options.items() if value is not None}


def _whole(command: str, name: str, text: str) -> int:
    """Read a whole number above 0."""
    if not (text.strip().isascii() and text.strip().isdigit() and 0 < int(text) < 10**9):
        raise InvalidValue(command, [(name, text, "expected whole numbers with commas between")])
    return int(text)


def objective_of(problem: "Problem") -> str:
    """Return the default objective of a problem."""
    return "step_time" if problem.workload.phase == "training" else "throughput"


def evaluate(
    context: typer.Context,
    plan: Annotated[str, typer.Argument(help="A plan: .json, as of solve --output.")],
    case: CaseOfPlan = None,
    as_json: Json = False,
    output: Plan = None,
) -> None:
    """Compute a plan's rate, its stages, its links and what it holds.

    A plan of your own has "stages", each with first_layer, last_layer and gpus (their ids). Its
    problem is the case that it names, --case, or the same --model and --gpus as before.
    """
    from pipelab.hardware.what_fits import capacity
    from pipelab.io.plans import as_planned, document_of, write_document

    problem, placement = _read(plan, context.obj, case)
    run, engine = as_planned(plan, problem)
    document = document_of(run, placement) | engine
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        print_evaluation(run, placement, capacity(run, placement))
    if output is not None:
        write_document(output, document)


def serve(
    context: typer.Context,
    plan: Annotated[str, typer.Argument(help="A plan: .json, as of solve --output.")],
    rate: Annotated[Real, option("Requests per second, which come at random.")] = None,
    clients: Annotated[
        Whole, option("In place of a rate: clients that wait for each answer.", "--clients")
    ] = None,
    trace: Annotated[
        Text, option("In place of a rate: a CSV file of times, tokens of prompts and of answers.")
    ] = None,
    requests: Annotated[Whole, option("How many are simulated (10000).")] = None,
    prompt: Annotated[
        Text, option("Tokens: a number, or uniform:1024:3072, exponential:2048, lognormal:2048:1.")
    ] = None,
    answer: Annotated[Text, option("Tokens of an answer, likewise.")] = None,
    chunk: Annotated[
        Whole, option("Tokens in one batch at most, those of prompts included.")
    ] = None,
    seed: Annotated[Whole, option("Of times and lengths.", min=0)] = None,
    percentile: Annotated[
        Real, option("To be shown besides, such as 99.9.", min=0, max=100)
    ] = None,
    case: CaseOfPlan = None,
    as_json: Json = False,
    output: Table = None,
) -> None:
    """Send requests through a plan: the times that they wait, in the mean and at the 99th percentile.

    Such as: pipelab serve plan.json --rate 2 --answer exponential:200. A plan of solve --runs-on is filled as
    that engine fills pipelines.
    """
    from pipelab.engine.serving.served import chunk_advice
    from pipelab.engine.serving.served import serve as run
    from pipelab.io.plans import as_planned

    problem, placement = _read(plan, context.obj, case, several=True)
    options: dict[str, Any] = {"rate": rate, "clients": clients, "chunk": chunk, "seed": seed}
    options |= {"prompt": _lengths(prompt), "answer": _lengths(answer)}
    if trace is not None and requests is not None:
        raise InvalidValue("options", [("--requests", requests, "expected none beside --trace")])
    options["requests"] = requests if trace is None else trace
    filled, _ = as_planned(plan, problem)
    served = run(filled, placement, **_given(options))
    if not as_json:
        print(" ".join(filter(None, [served.sentence, chunk_advice(served)])))
    _show(served.to_frame(*_given({"p": percentile}).values()), as_json, output, "serve")


def _lengths(text: str | None) -> Any:
    """Read a number of tokens, or the name of a distribution and its numbers."""
    parts = [part.strip() for part in (text or "").split(":")]
    if text is None or len(parts) == 1:
        return int(text) if text and text.isdecimal() else text
    return (parts[0], *(float(part) if NUMBER.fullmatch(part) else part for part in parts[1:]))


def settings(
    context: typer.Context,
    engine: Annotated[str, option(f"One of {', '.join(row.cells['engine'] for row in _ENGINES)}.")],
    case_or_plan: Annotated[
        Text, typer.Argument(help="A case to solve, or a plan written by solve --output.")
    ] = None,
    case: CaseOfPlan = None,
    hosts: Annotated[
        Text, option("Address of all GPUs, or of each by its id, with commas between.")
    ] = None,
    schedule: Schedule = None,
    recompute: Recompute = None,
    output: Annotated[
        Text, option("Write the script to this file; of a deployment FILE-pipeline-1.sh, ….")
    ] = None,
) -> None:
    """Print the launch script of an engine for a plan, or for the best one of a case or a model that it can start."""
    from pipelab.io.serving.engine_settings import DeploymentSettings
    from pipelab.io.serving.engine_settings import settings as translated

    step = _given({"schedule": schedule, "recompute": recompute})
    problem, plan = _planned(case_or_plan, context.obj, case, engine, step)
    if plan is None:
        raise typer.Exit(1)
    addresses = hosts.split(",") if hosts and "," in hosts else hosts
    launch = translated(problem, plan, engine, hosts=addresses)
    for note in launch.notes:
        say(note)
    if isinstance(launch, DeploymentSettings) and output is not None:
        for name, text in launch.files.items():
            write(str(Path(output).with_suffix("")) + f"-{name}", text, "settings")
    else:
        write(output or "-", str(launch), "settings")


def _planned(
    given: str | None, wanted: Wanted, case: str | None, engine: str, step: Mapping[str, Any]
) -> tuple["Problem", "Placement | Result | TrainingTimeline | None"]:
    """Return the problem and its plan, read from a file or solved; None if no placement exists, which is printed.

    `step` has the schedule of a training step, and what it recomputes, where they were given.
    """
    from pipelab.engine.solving import solve as run
    from pipelab.engine.timeline.placement_timelines import training_timeline
    from pipelab.io.plans import as_planned

    if given is not None and given.endswith(_PLAN):
        problem, placement = _read(given, wanted, case, several=True)
        if step or problem.workload.phase == "training":
            return problem, training_timeline(problem, placement, **step)
        filled, said = as_planned(given, problem)
        return filled if said.get("runs_on") == engine else problem, placement
    if case is not None:
        expected = "expected it beside a plan (.json) only"
        raise InvalidValue("settings", [("--case", case, expected)])
    problem = wanted.problem(given)
    result = run(problem, objective=objective_of(problem), runs_on=engine, **step)
    if result.placement is None:
        print(result.sentence)
    return problem, result if result.placement else None


def _read(
    plan: str, wanted: Wanted, case: str | None, several: bool = False
) -> tuple["Problem", Any]:
    """Return a plan's problem, and the plan, which must be of that problem; it may have several pipelines."""
    from pipelab.io.plans import load_placement, load_plan, problem_of

    if wanted.describes_model:
        if case is not None:
            raise InvalidValue("options", [("--case", case, "expected none beside --model")])
        problem = wanted.problem(None)
    else:
        problem = wanted.of_case(partial(problem_of, plan, case))
    return problem, load_plan(plan, problem) if several else load_placement(plan, problem)


def write(target: str, text: str, command: str) -> None:
    """Write to a file, or to standard output ("-")."""
    if target == "-":
        print(text, end="")
    else:
        write_to(command, target, text)


def compare(
    context: typer.Context,
    case: Case = None,
    methods: Annotated[Text, option("With commas between; all of them by default.")] = None,
    time_limit: Annotated[float, option("Seconds for each method.", min=0)] = 30.0,
    as_json: Json = False,
    output: Table = None,
) -> None:
    """Solve with several methods, side by side; exit status 1 where none finds a placement."""
    from pipelab.engine.comparison import EVERY_METHOD
    from pipelab.engine.comparison import compare as run

    names = EVERY_METHOD if methods is None else [name.strip() for name in methods.split(",")]
    comparison = run(context.obj.problem(case), names, time_limit=time_limit)
    _show(comparison.to_frame(), as_json, output, "compare")
    if not any(result.placement for result in comparison.results.values()):
        raise typer.Exit(1)


def sweep(
    context: typer.Context,
    vary: Annotated[
        list[str],
        option(
            f"NAME=VALUES with commas between, such as batch=8,16: {', '.join(problem_options.VARIED)}, or with "
            "--gpus a GPU type for its count. Several are combined."
        ),
    ],
    case: Case = None,
    method: Annotated[str, option("As of solve.")] = "aggregated",
    time_limit: Annotated[Real, option("Seconds for each point.", min=0)] = None,
    jobs: Annotated[Whole, option("Processes; one for each core.", min=1)] = None,
    as_json: Json = False,
    output: Annotated[
        Text, option("Keep rows in this CSV file as they are solved; the same call goes on.")
    ] = None,
) -> None:
    """Solve many problems that differ in some options; exit status 1 where none has a placement.

    Such as: pipelab sweep --model Llama-3-70B --gpus h100=4,l4=0 --vary l4=0,4,8 --vary batch=8,32
    """
    from pipelab.engine.sweeps.grids_and_mixes import grid
    from pipelab.engine.sweeps.run import sweep as run

    wanted: Wanted = context.obj
    axes: dict[str, list[float]] = {}
    for text in vary:
        name, values = _axis(text, wanted)
        if name in axes:
            expected = "expected each name once, with all its values"
            raise InvalidValue("sweep", [("--vary", text, expected)])
        axes[name] = values
    # what does not fit is refused here, and not by every point
    written = {name: axes[name][0] for name in axes if name == "output_tokens"}
    problem_options.changed(wanted, written).problem(case)
    make = partial(_point, wanted, case)
    # By this column a file is known to be that of another problem, and refused.
    asked = {} if output is None else {"problem": (wanted.said(case),)}
    options = _given({"time_limit": time_limit, "path": output, "jobs": jobs})
    swept = run(make, grid(**asked, **axes), method, progress=not as_json, **options)
    if not as_json:
        print(swept.sentence)
    _show(swept.to_frame(), as_json, None, "sweep")
    if not any(row["placement"] for row in swept.rows):
        raise typer.Exit(1)


def _axis(text: str, wanted: Wanted) -> tuple[str, list[float]]:
    """Read a name and its values."""
    from pipelab.hardware.known_gpus import load_gpus

    name, equals, values = (part.strip() for part in text.partition("="))
    plain = name.replace("-", "_")
    if plain not in problem_options.VARIED:
        if not wanted.gpus:
            expected = f"expected one of these, or with --gpus a type; {nearest(name, problem_options.VARIED)}"
            raise InvalidValue("sweep", [("--vary", name, expected)])
        plain = problem_options.gpu_type(name, load_gpus(wanted.gpu_facts))
    try:
        numbers = [float(v) if plain == "network_gbit" else int(v) for v in values.split(",")]
    except ValueError:
        numbers = []
    if not equals or not numbers:
        raise InvalidValue("sweep", [("--vary", text, "expected NAME=NUMBER,NUMBER,…")])
    return plain, numbers


def _point(wanted: Wanted, case: str | None, problem: str = "", **point: Any) -> "Problem":
    return problem_options.changed(wanted, point).problem(case)


def node(context: typer.Context, as_json: Json = False, output: Table = None) -> None:
    """List every division of one node into tensor parallelism, stages and replicas; --gpus h100=8, say.

    Needs --model and --gpus with one type, all on one node. Here --batch counts all sequences that
    the node has at a time; for solve it counts those of one microbatch.
    """
    from pipelab.hardware.measurements import doubt_of
    from pipelab.hardware.what_fits import node_mixes

    wanted: Wanted = context.obj
    problem = wanted.problem(None)
    kinds = set(problem.cluster.gpus)
    if len(kinds) > 1 or not problem.cluster.gpus[0].node:
        expected = "expected one type of GPU, at least two of them, all on one node (--per-node)"
        raise InvalidValue("node", [("--gpus", wanted.gpus or wanted.cluster, expected)])
    gpu, count = problem.cluster.gpus[0], len(problem.cluster)
    costs, model = cast("Roofline", problem.costs), cast("Transformer", problem.model)
    mixes = node_mixes(costs, model, problem.workload, gpu, count)
    _show(mixes, as_json, output, "node")
    if not as_json and (doubt := doubt_of(problem)):
        print(doubt)
    if not mixes["fits"].any():
        raise typer.Exit(1)


def count(
    context: typer.Context,
    case: Case = None,
    form: Annotated[str, option("written or tight.")] = "written",
    as_json: Json = False,
) -> None:
    """Count the joint ILP's variables and rows, without building it."""
    from pipelab.engine.methods.joint import joint_size

    size = joint_size(context.obj.problem(case), form)
    if as_json:
        print(json.dumps(size))
        return
    for name, number in size.items():
        print(f"{name:<12} {number:>20,}")


def _show(frame: DataFrame, as_json: bool, output: str | None, command: str) -> None:
    print(frame.to_json(orient="records", force_ascii=False) if as_json else table_text(frame))
    if output is not None:
        write_to(command, output, frame.to_csv(index=False))


COMMANDS = (solve, deploy, trade_off, evaluate, serve, settings, compare, sweep, node, count)
