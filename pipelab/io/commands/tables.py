"""Several answers in one table: methods, points of a sweep, mixes of one node, sizes."""

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelab.errors import InvalidValue, nearest
from pipelab.io.commands.wanted import (
    VARIED,
    Case,
    Json,
    Real,
    Text,
    Wanted,
    Whole,
    changed,
    gpu_type,
    option,
)
from pipelab.io.terminal import table_text

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.problem import Problem

Table = Annotated[Text, option("Write the table to this CSV file, too.")]


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
    found = run(context.obj.problem(case), names, time_limit=time_limit)
    _show(found.to_frame(), as_json, output, "compare")
    if not any(result.placement for result in found.results.values()):
        raise typer.Exit(1)


def sweep(
    context: typer.Context,
    vary: Annotated[
        list[str],
        option(
            f"NAME=VALUES with commas between, such as batch=8,16: {', '.join(VARIED)}, or with "
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
    from pipelab.engine.sweeps.points import grid
    from pipelab.engine.sweeps.run import sweep as run

    wanted: Wanted = context.obj
    axes = dict(_axis(text, wanted) for text in vary)
    # what does not fit is refused here, and not by every point
    written = {name: axes[name][0] for name in axes if name == "output_tokens"}
    changed(wanted, written).problem(case)
    make = partial(_point, wanted, case)
    limit: dict[str, Any] = {} if time_limit is None else {"time_limit": time_limit}
    # By this column a file is known to be that of another problem, and refused.
    asked = {} if output is None else {"problem": (wanted.said(case),)}
    found = run(
        make, grid(**asked, **axes), method, file=output, jobs=jobs, progress=not as_json, **limit
    )
    if not as_json:
        print(found.sentence)
    _show(found.to_frame(), as_json, None, "sweep")
    if not any(row["placement"] for row in found.rows):
        raise typer.Exit(1)


def _axis(text: str, wanted: Wanted) -> tuple[str, list[float]]:
    """Read a name and its values."""
    name, equals, values = (part.strip() for part in text.partition("="))
    plain = name.replace("-", "_")
    if plain not in VARIED:
        if not wanted.gpus:
            expected = f"expected one of these, or with --gpus a type; {nearest(name, VARIED)}"
            raise InvalidValue("sweep", [("--vary", name, expected)])
        plain = gpu_type(name)
    try:
        numbers = [float(v) if plain == "network_gbit" else int(v) for v in values.split(",")]
    except ValueError:
        numbers = []
    if not equals or not numbers:
        raise InvalidValue("sweep", [("--vary", text, "expected NAME=NUMBER,NUMBER,…")])
    return plain, numbers


def _point(wanted: Wanted, case: str | None, problem: str = "", **point: Any) -> "Problem":
    return changed(wanted, point).problem(case)


def node(
    context: typer.Context,
    as_json: Json = False,
    output: Table = None,
) -> None:
    """Every mix of tensor parallelism, stages and replicas on one node, such as --gpus h100=8.

    Needs --model and --gpus with one type, all on one node. Here --batch counts all sequences that
    the node has at a time; for solve it counts those of one microbatch.
    """
    from pipelab.hardware.expected_rates import doubt_of

    wanted: Wanted = context.obj
    problem = wanted.problem(None)
    kinds = set(problem.cluster.gpus)
    if len(kinds) > 1 or not problem.cluster.gpus[0].node:
        expected = "expected one type of GPU, at least two of them, all on one node (--per-node)"
        raise InvalidValue("node", [("--gpus", wanted.gpus or wanted.cluster, expected)])
    gpu, count = problem.cluster.gpus[0], len(problem.cluster)
    mixes = problem.costs.node_mixes(problem.model, problem.workload, gpu, count)
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


def _show(frame: "DataFrame", as_json: bool, output: str | None, command: str) -> None:
    from pipelab.io.csv_cells import write_to

    print(frame.to_json(orient="records", force_ascii=False) if as_json else table_text(frame))
    if output is not None:
        write_to(command, output, frame.to_csv(index=False))
