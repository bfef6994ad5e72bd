"""The explorers of GPU mixes and of schedules, asked at every position of a page's controls."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipelab.cli.commands.problem_options import gpu_type
from pipelab.cli.live_pages.page import Answer, Axis, positions, write_page
from pipelab.engine.answers import Result
from pipelab.engine.sweeps.run import sweep
from pipelab.errors import InvalidValue, PipelabError, refuse_unknown
from pipelab.files.reading_and_writing import path_of
from pipelab.hardware.known_gpus import load_gpus
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.widgets import mix_sentences as sentences
from pipelab.widgets.explorer_parts import Words
from pipelab.widgets.mix_answers import MixAnswer, MixState
from pipelab.widgets.mix_explorer import placement_chart
from pipelab.widgets.mix_values import Mix, beginning, code_of, problem_of, types_of
from pipelab.widgets.schedule_explorer import ScheduleValues, explore_schedules


def axis_of(option: str, text: str) -> Axis:
    """Read a control and its values.

    >>> axis_of("--vary", "ranks=2..4"), axis_of("--vary", "name=1F1B,ZBH1")
    (Axis(name='ranks', values=(2, 3, 4)), Axis(name='name', values=('1F1B', 'ZBH1')))
    """
    name, _, said = (part.strip() for part in text.partition("="))
    values: tuple[Any, ...] = tuple(map(_value, filter(None, said.split(","))))
    first, dots, last = said.partition("..")
    if dots:
        ends = first.isdecimal() and last.isdecimal()
        values = tuple(range(int(first), int(last) + 1)) if ends else ()
    if not values:
        expected = "expected NAME=VALUES with commas, or a range such as ranks=2..8"
        raise InvalidValue("page", [(option, text, expected)])
    return Axis(name, values)


def _value(text: str) -> Any:
    """Return a number, or the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text


def schedules_page(path: str | Path, axes: Sequence[Axis], made_by: str) -> Path:
    """Write the schedule explorer as a page; controls that are not on the axes stay as they begin."""
    known = ScheduleValues.__dataclass_fields__
    for axis in axes:
        refuse_unknown("control of the schedule explorer", axis.name, known)
    begin = {axis.name: axis.values[0] for axis in axes if axis.name in ("name", "other")}
    explorer = explore_schedules(**begin)

    def answers() -> Iterator[Answer]:
        for position in positions("page", axes):
            for name, value in position.items():
                explorer.controls[name].value = value
            yield Answer(
                chart=explorer.chart.parts,
                words=explorer.words.value + explorer.measures.value,
                code=explorer.code.code,
            )

    return write_page(path, "Schedules of a pipeline", axes, answers(), made_by)


def mix_page(
    path: str | Path,
    source: str,
    counts: Sequence[Axis],
    values: Sequence[Axis],
    made_by: str,
    **options: Any,
) -> Path:
    """Solve every mix, in parallel, and write what the mix explorer shows of each as a page.

    Parameters
    ----------
    path : path
        Of the page. Mixes that are solved are kept in a CSV file beside it.
    source : str
        A case or a model.
    counts : sequence of Axis
        The numbers of GPUs, by type.
    values : sequence of Axis
        Other controls of the mix explorer.
    **options
        Of `sweep`.

    Raises
    ------
    InvalidValue, UnknownName
        There is no such control or type, a value is outside its range, or positions are too many.
    SweepInterrupted
        Ctrl-C. What is solved is kept.
    """
    path = path_of("page", path)
    known, there = load_gpus(), types_of(source)
    types = [axis.name if axis.name in there else gpu_type(axis.name, known) for axis in counts]
    axes = [*(Axis(name, axis.values) for name, axis in zip(types, counts, strict=True)), *values]

    def mix_of(position: Mapping[str, Any]) -> Mix:
        others = {axis.name: position[axis.name] for axis in values}
        return beginning(source, {name: position[name] for name in types}, **{"batch": 16} | others)

    def make(problem: str, **point: Any) -> tuple[Problem, dict[str, Any]]:
        mix = mix_of(point)
        return problem_of(mix), {} if mix.runs_on is None else {"runs_on": mix.runs_on}

    points = positions("page", axes)
    mix_of(points[0])  # an unknown name is refused before anything is solved
    # By this column a file is known to be of another model, or of another version, and refused.
    asked = {"problem": f"{source}, pipelab {version('pipelab')}"}
    asked_points = [asked | point for point in points if any(point[name] for name in types)]
    rows = sweep(make, asked_points, path=path.with_suffix(".csv"), **options).rows
    solved = {tuple(row[axis.name] for axis in axes): row for row in rows}

    def answer(position: Mapping[str, Any]) -> Answer:
        mix = mix_of(position)
        try:
            problem = problem_of(mix)
            row = solved[tuple(position.values())]
            if row["status"] == "failed":
                raise PipelabError(row["reason"])
        except PipelabError as error:
            refused = MixState(mix=mix, refusal=error)
            return Answer(placement_chart(refused), escape(str(error)), code="")
        result = _result(problem, row)
        neighbours = {name: {**position, name: position[name] + 1} for name in types}
        gains = {
            name: solved[key]["throughput_tokens_per_s"] or 0.0
            for name, neighbour in neighbours.items()
            if (key := tuple(neighbour.values())) in solved
        }
        best = MixAnswer(mix=mix, problem=problem, result=result)
        state, words = MixState(mix=mix, answer=best, gains=gains), Words()
        words.say(*sentences.lines(state, gains))
        return Answer(placement_chart(state), words.value, code_of(mix))

    return write_page(path, f"{source} on a mix of GPUs", axes, map(answer, points), made_by)


def _result(problem: Problem, row: Mapping[str, Any]) -> Result:
    """Return the answer that a sweep's row tells of."""
    placement = None
    if stages := re.findall(r"layers (\d+)–?(\d*) on \[([^]]+)\]", row["placement"] or ""):
        gpus = [tuple(map(int, ids.split(", "))) for *_, ids in stages]
        counts = [int(last or first) - int(first) + 1 for first, last, _ in stages]
        placement = Placement.of(list(zip(counts, gpus, strict=True)))
    return Result(
        problem=problem,
        method="aggregated",
        status=row["status"],
        placement=placement,
        throughput=row["throughput_tokens_per_s"],
        bound=row["bound_tokens_per_s"],
        seconds=0.0,
        reason=row["reason"],
    )
