"""One plan: find it, evaluate it, hand it to an engine."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelab.errors import InvalidValue
from pipelab.io.commands.wanted import Case, Json, Real, Text, Wanted, option
from pipelab.io.csv_cells import write_to
from pipelab.io.terminal import print_evaluation, print_result, say
from pipelab.solving import METHODS, OBJECTIVES

if TYPE_CHECKING:
    from pipelab.placement import Placement
    from pipelab.problem import Problem
    from pipelab.solving import Result

_PLAN = ".json"
CaseOfPlan = Annotated[Text, option("Of a plan: its case, if the plan does not name it.", "--case")]


def solve(
    context: typer.Context,
    case: Case = None,
    method: Annotated[str, option(f"One of {', '.join(METHODS)}.")] = "auto",
    objective: Annotated[
        Text,
        option(f"One of {', '.join(OBJECTIVES)}; throughput by default, in training step_time."),
    ] = None,
    at_least: Annotated[Real, option("With latency or cost: a floor in tokens/s.")] = None,
    schedule: Annotated[Text, option("Of training: 1F1B (the default), ZBH1, …, or best.")] = None,
    recompute: Annotated[
        Text, option("In training: none (the default), selective, full or auto.")
    ] = None,
    form: Annotated[Text, option("With --method joint: written or tight.")] = None,
    time_limit: Annotated[
        Real, option("Seconds; the best placement by then is kept.", min=0)
    ] = None,
    gap: Annotated[Real, option("Stop when at most this share below the best.", min=0)] = None,
    as_json: Json = False,
    output: Annotated[
        Text, option("Write the whole plan, rates of stages and links included: .json.")
    ] = None,
) -> None:
    """Find the best placement; exit status 1 where none is found.

    Of a case: pipelab solve tiny. Of a model: pipelab solve --model Llama-3-70B --gpus a100=4,l4=8.
    Ctrl-C ends the search and prints the best so far.
    """
    from pipelab.io.plans import save
    from pipelab.solving import solve as run

    options: dict[str, Any] = {"form": form, "time_limit": time_limit, "gap": gap}
    options |= {"at_least": at_least, "schedule": schedule, "recompute": recompute}
    options = {name: value for name, value in options.items() if value is not None}
    problem = context.obj.problem(case)
    result = run(problem, method, objective or objective_of(problem), **options)
    if as_json:
        print(json.dumps(result.to_dict(), allow_nan=False))
    else:
        print_result(result)
    if result.placement is None:
        raise typer.Exit(1)
    if output is not None:
        save(result, output)


def objective_of(problem: "Problem") -> str:
    """Return the default objective of a problem."""
    return "step_time" if problem.workload.phase == "training" else "throughput"


def evaluate(
    context: typer.Context,
    plan: Annotated[str, typer.Argument(help="A plan: .json, as of solve --output.")],
    case: CaseOfPlan = None,
    as_json: Json = False,
    output: Annotated[Text, option("Write the whole plan, rates included: .json.")] = None,
) -> None:
    """Compute a plan's rate, its stages, its links and what it holds.

    A plan of your own has "stages", each with first_layer, last_layer and gpus (their ids). Its
    problem is the case that it names, --case, or the same --model and --gpus as before.
    """
    from pipelab.hardware.what_fits import capacity
    from pipelab.io.plans import document_of, save_placement

    problem, placement = _read(plan, context.obj, case)
    if as_json:
        print(json.dumps(document_of(problem, placement), allow_nan=False))
    else:
        print_evaluation(problem, placement, capacity(problem, placement))
    if output is not None:
        save_placement(problem, placement, output)


def settings(
    context: typer.Context,
    engine: Annotated[
        str, option("vLLM, llama.cpp, SGLang, Megatron, torchtitan, TensorRT-LLM or transformers.")
    ],
    case_or_plan: Annotated[
        Text, typer.Argument(help="A case to solve, or a plan written by solve --output.")
    ] = None,
    case: CaseOfPlan = None,
    hosts: Annotated[
        Text, option("Address of all GPUs, or of each by its id, with commas between.")
    ] = None,
    output: Annotated[Text, option("Write the script to this file.")] = None,
) -> None:
    """Print the launch script of an engine for a plan, or for the best one of a case or a model."""
    from pipelab.io.engines.launch import settings as translated

    problem, plan = _planned(case_or_plan, context.obj, case)
    if plan is None:
        raise typer.Exit(1)
    addresses = hosts.split(",") if hosts and "," in hosts else hosts
    found = translated(problem, plan, engine, hosts=addresses)
    for note in found.notes:
        say(note)
    write(output or "-", found.script, "settings")


def _planned(
    given: str | None, wanted: Wanted, case: str | None
) -> tuple["Problem", "Placement | Result | None"]:
    """Return the problem and its plan, read from a file or solved; None if no placement exists, which is printed."""
    from pipelab.solving import solve as run

    if given is not None and given.endswith(_PLAN):
        return _read(given, wanted, case)
    if case is not None:
        expected = "expected it beside a plan (.json) only"
        raise InvalidValue("settings", [("--case", case, expected)])
    problem = wanted.problem(given)
    result = run(problem, objective=objective_of(problem))
    if result.placement is None:
        print(result.sentence)
    return problem, result if result.placement else None


def _read(plan: str, wanted: Wanted, case: str | None) -> tuple["Problem", "Placement"]:
    """Return a plan's problem, and the plan, which must be of that problem."""
    from pipelab.io.plans import load_placement, problem_of

    if wanted.own:
        if case is not None:
            raise InvalidValue("options", [("--case", case, "expected none beside --model")])
        problem = wanted.problem(None)
    else:
        problem = problem_of(plan, case)
        if wanted.max_gpus is not None:
            problem = replace(problem, max_gpus_per_stage=wanted.max_gpus)
    return problem, load_placement(plan, problem)


def write(target: str, text: str, command: str) -> None:
    """Write to a file, or to standard output ("-")."""
    if target == "-":
        print(text, end="")
    else:
        write_to(command, target, text)
