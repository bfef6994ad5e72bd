"""The pictures of docs/img: each explorer as it stands in a real JupyterLab, after a few keys.

`python tests/make_pictures.py` makes all of them again; it needs Chromium (`pip install -e
'.[lab,test]'`).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab_server import LabServer, lab_server
from lab_session import LabPage, explorer, one_page

FOLDER = Path(__file__).parent.parent / "docs" / "img"
MOST_BYTES = 300_000
WIDTH = 1180  # of the page; what is shown in a README is about as wide


@dataclass(frozen=True)
class Picture:
    """One explorer: the cell that makes it, and what a reader does before the picture is taken."""

    cell: str
    act: Callable[[LabPage], None]
    until: str


def _one_more(page: LabPage) -> None:
    page.press("A100-SXM-40")


def _nothing(page: LabPage) -> None:
    pass


PICTURES = {
    "mix": Picture("pl.explore_mix('Llama-3-8B')", _one_more, "this plan reaches"),
    "schedules": Picture("pl.explore_schedules('1F1B', other='ZBH1')", _nothing, "ends at 27"),
    "pipeline": Picture(
        "pl.explore_pipeline('Llama-3-8B', {'A100-SXM-40': 1, 'T4': 2})", _nothing, "in flight:"
    ),
    "watch": Picture(
        "import dataclasses\nsmall = pl.load_case('small')\n"
        "heavy = dataclasses.replace(small.model, layer_weight_gb=20)\n"
        "pl.watch_solve(dataclasses.replace(small, model=heavy, name='small, heavy layers'), 'joint', form='tight')",
        _nothing,
        "proven optimal",
    ),
}


def take(server: LabServer, name: str, folder: Path) -> Path:
    """One picture, of the explorer alone."""
    picture = PICTURES[name]
    with one_page(server) as page, explorer(page, "import pipelab as pl", picture.cell):
        page.page.set_viewport_size({"width": WIDTH, "height": 2600})
        picture.act(page)
        page.page.wait_for_function(
            "t => document.body.innerText.includes(t) && !document.body.innerText.includes('being solved')",
            arg=picture.until, timeout=120_000,
        )  # fmt: skip
        page.page.wait_for_timeout(1500)
        shown = page.page.locator(".jp-OutputArea-output:has(.pipelab-chart)").first
        shown.screenshot(path=str(folder / f"{name}.png"))
    return folder / f"{name}.png"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    with lab_server() as one:
        for wanted in sys.argv[1:] or PICTURES:
            made = take(one, wanted, FOLDER)
            print(made.name, made.stat().st_size // 1000, "kB")
            assert made.stat().st_size < MOST_BYTES, "too large for a README"
