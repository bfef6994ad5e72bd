"""The command line: `pipelab` opens the lab; the other commands do without it."""

import errno
import io
import json
import shlex
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelab.cli.commands.problem_options import ProblemCommand, Text, option
from pipelab.cli.commands.problems import COMMANDS, write
from pipelab.cli.printing import mute, print_ledger, say, table_text
from pipelab.errors import InvalidValue, MissingPackage, PipelabError
from pipelab.files.reading_and_writing import refused

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    help="Which GPUs should hold which layers of a large language model?\n\n"
    "A problem is a case (pipelab cases), a folder of CSV files, or a model on GPUs: "
    "--model Llama-3-70B --gpus a100=4,l4=8. Without a command: open the notebooks.\n\n"
    "Exit status: 0, 1 where there is no placement, 2 where something is refused.",
)
_PLAN, _COURSE = "Place a model", "The course"
_PIPE_CLOSED = 141  # as a shell reports a closed pipe: 128 and the number of SIGPIPE
Documents = Annotated[
    list[str] | None, typer.Argument(help="pmetal, scheduler, boostr, write-up; or all.")
]
Student = Annotated[bool, option("Without solutions.", "--student")]
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def main() -> None:
    """Run the command line; what pipelab refuses is one sentence and exit status 2."""
    warnings.showwarning = _warn
    # arrows and Greek letters, whatever the terminal's code page
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # and not what a program put in its place
            # a file's name may be no text at all
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    status = _run()
    try:
        if sys.stdout is not None:  # closed by the parent process
            sys.stdout.flush()  # what was written may only now meet a full disk
    except OSError as error:
        status = _unheard(error)
    sys.exit(status)


def _run() -> int | str | None:
    """Run a command and return its exit status; an error becomes a sentence on standard error."""
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        # typer and rich end with 1 where the reader of the output has left
        return _PIPE_CLOSED if isinstance(ended.__context__, BrokenPipeError) else ended.code
    except PipelabError as error:
        return say(error)
    except ModuleNotFoundError as error:
        return say(MissingPackage("this command", error.name or str(error)))
    except KeyboardInterrupt:
        return say("interrupted before there was anything to show", 130)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EPIPE):
            return _unheard(error)
        return say(f"{error}; make sure that this file or device can be used, and run it again")
    return 0


def _unheard(error: OSError) -> int:
    """Return the exit status if standard output takes no more."""
    mute(sys.stdout)
    left = isinstance(error, BrokenPipeError)
    return _PIPE_CLOSED if left else say(refused("standard output", "write", error))


def _warn(message: object, *_: Any, **__: Any) -> None:
    say(message)


@app.callback(invoke_without_command=True)
def _open(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"pipelab {metadata.version('pipelab')}")
    elif context.invoked_subcommand is None:
        from pipelab.cli.open_notebooks import open_lab

        open_lab([])


for _command in COMMANDS:
    app.command(cls=ProblemCommand, rich_help_panel=_PLAN)(_command)


@app.command(context_settings=_PASS_ON, rich_help_panel=_COURSE)
def lab(context: typer.Context) -> None:
    """Open JupyterLab on the notebooks; further arguments go to JupyterLab."""
    from pipelab.cli.open_notebooks import open_lab

    open_lab(context.args)


@app.command(rich_help_panel=_PLAN)
def cases() -> None:
    """List the bundled cases."""
    from pipelab.writeup.cases_csv import cases as names
    from pipelab.writeup.cases_csv import load_case

    for name in names():
        problem = load_case(name)
        cluster, layers = problem.cluster, problem.model.layers
        pool = ", ".join(f"{row.count} × {row.type}" for row in cluster.to_frame().itertuples())
        print(f"{name:<13} {layers:>3} layers, {len(cluster):>2} GPUs: {pool}")


@app.command(rich_help_panel=_PLAN)
def calibrate(
    files: Annotated[list[str], typer.Argument(help="What benchmarks wrote, or CSV files.")],
    rates: Annotated[str, option("Engine whose constants are fitted.")] = "vLLM",
    model: Annotated[Text, option("Of a benchmark that does not say it.")] = None,
    gpu_type: Annotated[Text, option("Of a benchmark that does not say it.")] = None,
    precision: Annotated[Text, option("Of a benchmark that does not say it.")] = None,
    html: Annotated[Text, option("Write the errors before and after as a chart.")] = None,
) -> None:
    """Fit the constants of GPUs and of an engine to measured times, and say how far off predictions were and are.

    Such as: pipelab calibrate bench.json --rates llama.cpp --html errors.html
    """
    from pipelab.figures.plotting import plot
    from pipelab.hardware.benchmark_files import calibrate as fit
    from pipelab.hardware.roofline import Roofline

    stated = {"model": model, "gpu_type": gpu_type, "precision": precision}
    fitted = fit(Roofline(engine=rates), files, **{k: v for k, v in stated.items() if v})
    print(fitted.sentence)
    print(table_text(fitted.moved))
    if html is not None:
        write(html, plot(fitted).to_html(), "calibrate")


@app.command(rich_help_panel=_COURSE)
def reproduce(
    documents: Documents = None,
    csv: Annotated[Text, option("Write the ledger to a CSV file; - for standard output.")] = None,
    html: Annotated[Text, option("Write it as a page; - for standard output.")] = None,
) -> None:
    """Compute every claim of the write-up and of three programs; exit status 1 if a verdict is not as recorded."""
    from pipelab.course.ledger import reproduce as run

    if csv == html == "-":
        raise InvalidValue("reproduce", [("--csv and --html", "-", "expected at most one of them")])
    ledger = run(documents or None, progress=True)
    for target, text in ((csv, ledger.csv), (html, ledger.html)):
        if target is not None:
            write(target, text(), "reproduce")
    print_ledger(ledger, sys.stderr if "-" in (csv, html) else sys.stdout)
    if ledger.changed:
        raise typer.Exit(1)


@app.command(rich_help_panel=_COURSE)
def copy(
    folder: Annotated[str, typer.Argument(help="Where the notebooks go.")], student: Student = False
) -> None:
    """Copy the notebooks to a folder of your own; no file there is overwritten."""
    from pipelab.cli.open_notebooks import copy_notebooks

    copied = copy_notebooks(folder, student=student)
    for path in copied:
        print(path)
    if not copied:
        print(f"every notebook is in {folder} already; nothing was changed")


@app.command(rich_help_panel=_COURSE)
def page(
    explorer: Annotated[str, typer.Argument(help="mix or schedules.")],
    output: Annotated[str, typer.Option("--output", "-o", help="The page, such as mix.html.")],
    model: Annotated[str, option("Of the mix: a model or a case.")] = "Llama-3-70B",
    gpus: Annotated[Text, option("Of the mix: ranges by type, such as a100=0..3,l4=0..4.")] = None,
    vary: Annotated[
        list[str] | None,
        option("Another control: NAME=VALUES with commas, or a range such as ranks=2..8."),
    ] = None,
    time_limit: Annotated[float | None, option("Seconds for each mix.", min=0)] = None,
    jobs: Annotated[int | None, option("Processes; one for each core.", min=1)] = None,
) -> None:
    """Write an explorer as one file: its sliders look up answers that are computed now, and need no Python then.

    Mixes that are solved are kept beside it, in a CSV file, from which the same call goes on after a stop.

    Such as: pipelab page mix --gpus a100-sxm-40=0..3,l4=0..4 --vary gpus_per_stage=1,2 -o mix.html
    """
    from pipelab.cli.live_pages.explorers import axis_of, mix_page, schedules_page

    made_by = f"pipelab {metadata.version('pipelab')}: {shlex.join(['pipelab', *sys.argv[1:]])}"
    axes = [axis_of("--vary", text) for text in vary or ()]
    if explorer == "schedules":
        written = schedules_page(output, axes, made_by)
    elif explorer == "mix":
        counts = [axis_of("--gpus", part) for part in (gpus or "").split(",") if part]
        options = {"time_limit": time_limit, "jobs": jobs}
        written = mix_page(output, model, counts, axes, made_by, **options)
    else:
        raise InvalidValue("page", [("explorer", explorer, "expected mix or schedules")])
    print(f"{written}: {written.stat().st_size / 1e6:.1f} MB")


@app.command(rich_help_panel=_COURSE)
def grade(
    copy: Annotated[str, typer.Argument(help="A student's copy, such as 05.ipynb, or a folder.")],
    limit: Annotated[float, option("Seconds for a whole notebook.")] = 600.0,
    each: Annotated[float, option("Seconds for a cell.")] = 60.0,
    seed: Annotated[int, option("Try functions on hidden inputs too, drawn with this number.")] = 0,
    as_json: Annotated[bool, option("Print the results.json of Gradescope.", "--json")] = False,
    csv: Annotated[Text, option("Write a row per copy of a folder; - for standard output.")] = None,
) -> None:
    """Run a student's copy of a notebook, or all in a folder, and check the answers in another process.

    This is no sandbox: a notebook may do whatever you may. Run it in a container.
    """
    from pipelab.cli.grading import grade as graded
    from pipelab.cli.grading import grade_folder

    several = Path(copy).is_dir()
    if several and as_json:
        raise InvalidValue("grade", [("--json", copy, "expected one copy; a folder has --csv")])
    say("grade is no sandbox: the notebook runs with your rights; use a container")
    if several or csv:
        points = grade_folder(copy, limit, each, seed, progress=True)
        write(csv or "-", points.to_csv(index=False), "grade")
        return
    result = graded(copy, limit, each, seed)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    for test in result["tests"]:
        print(f"{test['score']:g}/{test['max_score']}  {test['name']}: {test['output']}")
    most = sum(test["max_score"] for test in result["tests"])
    print(f"{result['score']:g} of {most} points. {result['output']}")
