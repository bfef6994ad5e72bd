"""`pipelab grade`: the grade of a notebook as a table, or as Gradescope reads it."""

import json
from typing import Annotated

import typer

from pipelab.io.streams import say


def grade(
    notebook: Annotated[str, typer.Argument(help="A student's copy, such as 05_joint_ilp.ipynb.")],
    limit: Annotated[float, typer.Option(help="Seconds for the whole notebook.")] = 600.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print Gradescope's results.json.")
    ] = False,
) -> None:
    """Run a student's copy of a notebook, and check its answers in another process.

    This is no sandbox: the notebook may do whatever you may. Run it in a container.
    """
    from pipelab.io.grading.grader import grade as graded

    say("grade is no sandbox: the notebook runs with your rights; use a container")
    result = graded(notebook, limit)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    for test in result["tests"]:
        print(f"{test['score']}/{test['max_score']}  {test['name']}: {test['output']}")
    print(f"{result['score']} of {len(result['tests'])} points. {result['output']}")
