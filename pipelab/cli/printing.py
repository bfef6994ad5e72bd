"""What the command line prints: results as tables, the ledger, and sentences on standard error."""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from pipelab.display import DataFrame, duration, number, rate

if TYPE_CHECKING:
    from pipelab.course.ledger.book import Ledger
    from pipelab.engine.answers import Result
    from pipelab.engine.deployments.result import Deployment
    from pipelab.evaluation import Evaluation
    from pipelab.hardware.what_fits import Capacity
    from pipelab.placement import Placement
    from pipelab.problem import Problem


def print_result(result: "Result") -> None:
    """Print the answer, its stages and its links; in training, its ranks."""
    from pipelab.engine.training import TrainingResult

    print(result.sentence)
    if result.doubt:
        print(result.doubt)
    print(f"Method: {result.method}{', ' if result.solver else ''}{result.solver}")
    if isinstance(result, TrainingResult):
        if result.step is not None:
            print(f"\n{table_text(result.step.to_frame())}")
    elif result.evaluation:
        _print_times(result.problem, result.evaluation)
        _print_stages(result.problem, result.evaluation)


def print_deployment(deployment: "Deployment") -> None:
    """Print the answer, and its pipelines."""
    print(deployment.sentence)
    if deployment.doubt:
        print(deployment.doubt)
    if deployment.pipelines:
        price = deployment.usd_per_hour
        print("" if price is None else f"Its GPUs cost {price:.7g} $ per hour\n")
        print(table_text(_with_equal_rows_counted(deployment.to_frame())))


def _with_equal_rows_counted(frame: DataFrame) -> DataFrame:
    """Return a table of pipelines in which rows that are printed alike are one, with the number of all.

    Their GPUs may be no interchangeable ones, such as those of another host.
    """
    shown = frame.map(lambda cell: float(f"{cell:.7g}") if isinstance(cell, float) else cell)
    kinds = shown.groupby([*shown.columns.drop("pipelines")], sort=False, dropna=False)
    return kinds.sum().reset_index()[shown.columns]


def print_evaluation(problem: "Problem", placement: "Placement", held: "Capacity") -> None:
    """Print a placement's attainable rate, what it holds, its stages and its links."""
    from pipelab.evaluation import evaluate

    evaluation = evaluate(problem, placement)
    text = rate(evaluation.attainable)
    if evaluation.in_flight is not None:
        text += f" with {evaluation.in_flight} in flight"
    if evaluation.attainable < evaluation.rate * (1 - 1e-6):
        text += f", of a rate of {number(evaluation.rate)} that {evaluation.reached_by}"
    print(f"{text}; slowest: {', '.join(evaluation.bottlenecks)}")
    load, unlimited = held.workload, "any number of"
    context = unlimited if held.context is None else f"{held.context:,}"
    sequences = unlimited if held.sequences is None else f"{held.sequences:,}"
    print(
        f"It holds {load.batch_size * load.in_memory:,} sequences of {context} tokens, "
        f"or {sequences} sequences of {load.sequence_length:,} tokens"
    )
    print(f"Filling of the pipeline: {evaluation.filling}")
    _print_times(problem, evaluation)
    _print_stages(problem, evaluation)


def _print_times(problem: "Problem", evaluation: "Evaluation") -> None:
    """Print how long the sequences in flight take, where links have a time."""
    per_token = evaluation.seconds_per_token
    if per_token is None:
        return
    passed = duration(evaluation.seconds_per_pass)
    some = f"{evaluation.in_flight} in flight"
    if problem.workload.phase == "prefill":
        print(f"A prompt has its first token after {passed} (TTFT) if nothing waits, with {some}")
    else:
        print(
            f"Every sequence gets a token every {duration(per_token)} (TPOT), with {some}; a pass takes {passed}"
        )


def _print_stages(problem: "Problem", evaluation: "Evaluation") -> None:
    """Print stages and links; GPUs as their hosts call them, where a listing of the hosts says that."""
    cluster, stages, links = problem.cluster, evaluation.to_frame(), evaluation.links_frame()
    if cluster.index:
        names = [f"{gpu.host}:{i}" for gpu, i in zip(cluster.gpus, cluster.index, strict=True)]
        stages["gpus"] = [", ".join(names[g] for g in s.stage.gpus) for s in evaluation.stages]
        links["slowest_pair"] = [f"{names[x.sender]}→{names[x.receiver]}" for x in evaluation.links]
    print()
    print(table_text(stages))
    if evaluation.links:
        print()
        print(table_text(links))


def print_ledger(ledger: "Ledger", stream: TextIO) -> None:
    """Print every claim (on standard output only), the verdicts counted, and those that changed."""
    if stream is sys.stdout:
        for row in ledger.data.to_dict("records"):
            claim = f"{row['document']} {row['row']}"
            print(
                f"{claim:<12}  {_short(row['it says']):<48}  {_short(row['computed'], 32):<32}  {row['verdict']}"
            )
        print()
    print(ledger.verdict_counts().to_string(index=False), file=stream)
    for row in ledger.changed.data.to_dict("records"):
        print(
            f"CHANGED {row['document']} {row['row']}, {row['it says']!r}: recorded {row['recorded']}, now "
            f"{row['verdict']}; {row['printed or tested']!r} beside {row['computed']}. {row['remark']}",
            file=stream,
        )
    print(ledger.summary, file=stream)


def _short(value: object, most: int = 48) -> str:
    """Shorten a cell of a table that is read in a terminal."""
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def table_text(frame: DataFrame) -> str:
    """Write a data frame as plain text, columns named by their units."""
    return frame.to_string(index=False, float_format=lambda v: f"{v:.7g}")


def say(message: object, status: int = 2) -> int:
    """Say it on standard error, and return the exit status."""
    try:
        print(f"pipelab: {message}", file=sys.stderr, flush=True)
    except OSError:  # standard error is closed
        mute(sys.stderr)
    return status


def mute(stream: TextIO) -> None:
    """Discard what is still to be written, so that Python's own flush at the end does not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
