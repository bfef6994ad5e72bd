"""The command line: `pipelab` opens the lab; the other commands do without it."""

import json
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelab.errors import InvalidValue, MissingPackage, PipelabError
from pipelab.io.csv_cells import write_to
from pipelab.io.grading.command import grade
from pipelab.io.streams import heard, say
from pipelab.io.terminal import print_ledger, print_result
from pipelab.solving import METHODS

if TYPE_CHECKING:
    from pipelab.placement import Placement
    from pipelab.problem import Problem
    from pipelab.solving import Result

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    help="Which GPUs should hold which layers of a large language model? Without a command: open the notebooks.",
)
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

Case = Annotated[
    str, typer.Argument(help="A bundled case, or a folder in the write-up's CSV format.")
]
MaxGpus = Annotated[int | None, typer.Option("--max-gpus", help="GPUs per stage, at most.")]
SameType = Annotated[
    bool | None, typer.Option("--same-type/--mixed", help="Only stages of one GPU type.")
]
BatchSplit = Annotated[str | None, typer.Option(help="even or balanced.")]
LinkUnits = Annotated[str | None, typer.Option(help="transfers (as the write-up) or tokens.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def main() -> None:
    """Run the command line; what pipelab refuses is one sentence and exit status 2."""
    warnings.showwarning = _warn
    sys.exit(heard(_run))


def _run() -> int | str | None:
    """The exit status of the command line; what was refused is said."""
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        return ended.code
    except PipelabError as error:
        return say(error)
    except ModuleNotFoundError as error:
        return say(MissingPackage("this command", error.name or str(error)))
    except KeyboardInterrupt:
        return say("interrupted before there was anything to show", 130)
    except OSError as error:
        return say(
            f"{error}; make sure that this file or device can be used, and run the command again"
        )
    return 0


def _warn(message: object, *_: Any, **__: Any) -> None:
    say(message)


@app.callback(invoke_without_command=True)
def _open(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        from pipelab.io.lab import open_lab

        open_lab([])


@app.command(context_settings=_PASS_ON)
def lab(context: typer.Context) -> None:
    """Open JupyterLab on the notebooks; further arguments go to JupyterLab."""
    from pipelab.io.lab import open_lab

    open_lab(context.args)


@app.command()
def doctor() -> None:
    """Say what is installed and which solvers answer; each solves tiny. Exit status 1 if one does not."""
    from pipelab.io.health import examine

    findings = examine()
    width = max(len(f.what) for f in findings)
    for f in findings:
        print(f"{'ok' if f.ok else 'NO' if f.needed else '--'}  {f.what:<{width}}  {f.found}")
    if any(f.needed and not f.ok for f in findings):
        raise typer.Exit(1)


@app.command()
def cases() -> None:
    """List the bundled cases."""
    from pipelab.io.cases_csv import cases as names
    from pipelab.io.cases_csv import load_case

    for name in names():
        problem = load_case(name)
        pool = ", ".join(
            f"{row.count} × {row.type}" for row in problem.cluster.to_frame().itertuples()
        )
        print(
            f"{name:<13} {problem.model.layers:>3} layers, {len(problem.cluster):>2} GPUs: {pool}"
        )


@app.command()
def count(
    case: Case,
    max_gpus: MaxGpus = None,
    same_type: SameType = None,
    form: Annotated[str, typer.Option(help="written or tight.")] = "written",
    as_json: Json = False,
) -> None:
    """Count the joint ILP of a case, without building it."""
    from pipelab.engine.methods.joint_model import joint_size

    problem = _load(case, max_gpus_per_stage=max_gpus, same_type_stages=same_type)
    size = joint_size(problem, form)
    if as_json:
        print(json.dumps(size))
        return
    for name, number in size.items():
        print(f"{name:<12} {number:>20,}")


@app.command()
def solve(
    case: Case,
    max_gpus: MaxGpus = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "auto",
    form: Annotated[str | None, typer.Option(help="With --method joint: written or tight.")] = None,
    same_type: SameType = None,
    batch_split: BatchSplit = None,
    link_units: LinkUnits = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0, help="Seconds; the best placement by then is kept.")
    ] = None,
    gap: Annotated[
        float | None, typer.Option(min=0, help="Stop when at most this share below the best.")
    ] = None,
    as_json: Json = False,
    output: Annotated[
        str | None,
        typer.Option(
            help="Write the whole plan, rates of stages and links included: .json or .csv."
        ),
    ] = None,
) -> None:
    """Find the best placement of a case; exit status 1 where none is found.

    Ctrl-C ends the search and prints the best so far.
    """
    from pipelab.io.saving import save
    from pipelab.solving import solve as run

    rules = {"max_gpus_per_stage": max_gpus, "same_type_stages": same_type}
    problem = _load(case, **rules, batch_split=batch_split, link_units=link_units)
    options: dict[str, Any] = {"form": form, "time_limit": time_limit, "gap": gap}
    result = run(problem, method, **{k: v for k, v in options.items() if v is not None})
    if as_json:
        print(json.dumps(result.to_dict(), allow_nan=False))
    else:
        print_result(result)
    if result.placement is None:
        raise typer.Exit(1)
    if output is not None:
        save(result, output)


@app.command()
def settings(
    case_or_plan: Annotated[
        str, typer.Argument(help="A case to solve, or a plan written by solve --output.")
    ],
    engine: Annotated[str, typer.Option(help="vLLM, llama.cpp, SGLang, Megatron or TensorRT-LLM.")],
    case: Annotated[
        str | None, typer.Option(help="Of a plan: its case, if the plan does not name it.")
    ] = None,
    max_gpus: MaxGpus = None,
    hosts: Annotated[
        str | None,
        typer.Option(help="Address of all GPUs, or of each by its id, with commas between."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Write the script to this file.")] = None,
) -> None:
    """Print the launch script of an engine for a case's best placement, or for a plan."""
    from pipelab.io.engines.choice import settings as translated

    problem, plan = _planned(case_or_plan, case, max_gpus)
    if plan is None:
        raise typer.Exit(1)
    addresses = hosts.split(",") if hosts and "," in hosts else hosts
    found = translated(problem, plan, engine, hosts=addresses)
    for note in found.notes:
        say(note)
    _write(output or "-", found.script, "settings")


def _planned(
    case_or_plan: str, case: str | None, max_gpus: int | None
) -> tuple["Problem", "Placement | Result | None"]:
    """The problem and its plan: from a file, or solved; None, and said, where no placement exists."""
    from pipelab.io.loading import load_placement, problem_of
    from pipelab.solving import solve as run

    if case_or_plan.endswith((".json", ".csv")):
        problem = problem_of(case_or_plan, case)
        if max_gpus is not None:
            problem = replace(problem, max_gpus_per_stage=max_gpus)
        return problem, load_placement(case_or_plan, problem)
    if case is not None:
        expected = "expected it beside a plan (.json or .csv) only"
        raise InvalidValue("settings", [("--case", case, expected)])
    problem = _load(case_or_plan, max_gpus_per_stage=max_gpus)
    result = run(problem)
    if result.placement is None:
        print(result.sentence)
    return problem, result if result.placement else None


@app.command()
def reproduce(
    documents: Annotated[
        list[str] | None, typer.Argument(help="pmetal, scheduler, boostr, write-up; or all.")
    ] = None,
    csv: Annotated[
        str | None, typer.Option(help="Write the ledger to this CSV file; - for standard output.")
    ] = None,
    html: Annotated[
        str | None, typer.Option(help="Write it as a page; - for standard output.")
    ] = None,
) -> None:
    """Compute every claim of the write-up and of three programs; exit status 1 if a verdict is not as recorded."""
    from pipelab.course.ledger import reproduce as run

    if csv == html == "-":
        raise InvalidValue(
            "reproduce", [("--csv and --html", "-", "expected at most one on standard output")]
        )
    ledger = run(documents or None, progress=True)
    for target, text in ((csv, ledger.csv), (html, ledger.html)):
        if target is not None:
            _write(target, text(), "reproduce")
    print_ledger(ledger, sys.stderr if "-" in (csv, html) else sys.stdout)
    if ledger.changed:
        raise typer.Exit(1)


def _write(target: str, text: str, command: str) -> None:
    if target == "-":
        print(text, end="")
    else:
        write_to(command, target, text)


@app.command()
def copy(folder: Annotated[str, typer.Argument(help="Where the notebooks go.")]) -> None:
    """Copy the notebooks to a folder of your own; no file there is overwritten, only a torn copy is repaired."""
    from pipelab.io.lab import copy_notebooks

    copied = copy_notebooks(folder)
    for path in copied:
        print(path)
    if not copied:
        print(f"every notebook is in {folder} already; nothing was changed")


@app.command()
def static(
    folder: Annotated[
        str, typer.Argument(help="Where the pages go: new, empty, or an earlier copy.")
    ],
    notebooks: Annotated[
        list[str] | None, typer.Argument(help="Such as 00_start_here; all of them without it.")
    ] = None,
) -> None:
    """Run the notebooks and write them as pages that read without installing; a few minutes for all."""
    from pipelab.io.static import static_copy

    pages = static_copy(folder, notebooks, progress=True)
    print(f"{len(pages)} pages; begin with {pages[0]}")


app.command()(grade)


def _load(case: str, **options: Any) -> "Problem":
    from pipelab.io.cases_csv import load_case

    return load_case(case, **{k: v for k, v in options.items() if v is not None})


if __name__ == "__main__":
    main()
