"""The notebooks as a course: what their heads say of them, and which way through them is whose.

Names that the notebooks use and nothing else does are here, too, such as `course.show_table`.
"""

import json
import re
from dataclasses import dataclass
from functools import cache

import lazy_loader

from pipelab.errors import InvalidData
from pipelab.io.paths import notebooks_dir

__getattr__, _, COURSE_NAMES = lazy_loader.attach(
    "pipelab",
    submod_attrs={
        "course.n00": ["plot_course", "plot_cut", "plot_moving", "three_sites"],
        "course.n01": ["plot_split_table", "plot_splits"],
        "course.n02": ["five_gpus", "plot_rates"],
        "course.n03": ["plot_answer", "plot_staircase"],
        "course.n04": [
            "outcome_of_prediction",
            "plot_against_prediction",
            "plot_fixes",
            "plot_predictions",
            "plot_speedup",
        ],
        "course.n05": ["leave_out", "plot_choice", "plot_closing", "plot_tree", "seven_gpus"],
        "course.n06": ["one_network", "plot_bisection", "plot_mixes", "plot_prices"],
        "course.n08": ["published_bubbles"],
        "course.n09": ["arithmetic_intensity", "plot_roofline", "plot_sensitivity"],
        "course.n10": ["helix_cluster", "plot_stage_groups"],
        "course.n12": [
            "best_pair",
            "plot_training_memory",
            "training_conclusions",
            "training_errors",
        ],
        "course.n13": ["author_results", "plot_verdicts"],
        "course.n14": ["plot_faults"],
        "course.pictures": ["plot_lines"],
        "course.reading_tables": ["show_table"],
        "display": ["duration"],
        "engine.classes": ["gpu_classes"],
        "engine.formulations.candidates": ["enumerate_candidates"],
        "engine.formulations.count": ["count_candidates"],
        "engine.formulations.joint": ["joint_formulation"],
        "engine.methods.exhaustive": ["count_placements"],
        "engine.methods.joint": [
            "joint_capacity",
            "joint_lp_bound",
            "joint_program",
            "joint_size",
        ],
        "engine.methods.single_gpu": ["single_gpu_size"],
        "engine.training.result": ["schedules_for"],
        "figures.growth": ["plot_growth", "plot_run_times", "plot_search_growth"],
        "figures.layers": ["plot_layer_times"],
        "figures.makespans": ["plot_makespans"],
        "hardware.measurements": ["error_bands", "held_out_errors"],
        "hardware.training_memory": ["activation_bytes", "weight_share"],
        "io.csv_cells": ["saved_run"],
        "splits": ["count_splits"],
    },
)
__all__ = ["WAYS", "Notebook", "Way", "notebooks_of_the_course", *COURSE_NAMES]


@dataclass(frozen=True)
class Notebook:
    """A notebook of the course, as its first cell describes it."""

    file: str
    title: str
    minutes: int

    @property
    def number(self) -> str:
        """The first two characters of its name."""
        return self.file[:2]


@dataclass(frozen=True)
class Way:
    """What a reader wants, and the numbers of the notebooks to read, whole or in part."""

    wants: str
    whole: tuple[str, ...]
    part: tuple[str, ...] = ()


# Notebook 00 says in words which parts are meant.
WAYS = {
    "learner": Way(
        "to see how the problem evolved, idea by idea",
        ("00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14"),
    ),
    "researcher": Way(
        "the write-up's numbers, and its mistakes",
        ("00", "03", "04", "06", "08", "13", "14"),
        ("05", "09"),
    ),
    "engineer": Way("a placement for GPUs of your own", ("00", "09", "10", "11", "12"), ("06",)),
}


@cache
def notebooks_of_the_course() -> tuple[Notebook, ...]:
    """The bundled notebooks in their order.

    Raises
    ------
    InvalidData
        A notebook's first cell has no title, or no line with its minutes.

    Examples
    --------
    >>> [book.number for book in notebooks_of_the_course()][-1]
    '14'
    """
    books = []
    for path in sorted(notebooks_dir().glob("[0-9][0-9]_*.ipynb")):
        head = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        found = re.match(
            r"# (?P<title>[^\n:?]+).*^\*(?P<minutes>\d+) minutes", head, flags=re.S | re.M
        )
        if not found:
            raise InvalidData(
                f"{path}: the first cell: expected a title and a line such as '*20 minutes · next: …*'"
            )
        books.append(Notebook(path.name, found["title"], int(found["minutes"])))
    return tuple(books)
