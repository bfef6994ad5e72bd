"""Open JupyterLab on the notebooks; copy them to a folder of the reader's own."""

import shutil
from pathlib import Path

from pipelab.errors import PipelabError
from pipelab.iri_grammar import build_iri_grammar_when_asked
from pipelab.paths import in_clone, notebooks_dir

__all__ = ["copy_notebooks", "open_lab", "working_folder"]

START = "00_start_here.ipynb"


def working_folder() -> Path:
    """The folder to open: the clone's own notebooks, or a copy beside the reader."""
    if in_clone():
        return notebooks_dir()
    folder = Path.cwd() / "pipelab-notebooks"
    copy_notebooks(folder)
    return folder


def copy_notebooks(folder: Path) -> list[Path]:
    """Copy the notebooks into `folder`; a file that is there already stays as it is.

    Returns
    -------
    list of Path
        The files that were copied.
    """
    if folder.exists() and not folder.is_dir():
        raise PipelabError(f"{folder} is a file; name a folder to copy the notebooks into")
    copied = []
    for source in sorted(notebooks_dir().rglob("*.ipynb")):
        if ".ipynb_checkpoints" in source.parts:
            continue
        target = folder / source.relative_to(notebooks_dir())
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            copied.append(target)
    return copied


def open_lab(arguments: list[str]) -> None:
    """Start JupyterLab on the first notebook, with its own protection: loopback and a token.

    Parameters
    ----------
    arguments : list of str
        Passed on to JupyterLab, such as `--no-browser` or `--port=9000`.
    """
    build_iri_grammar_when_asked()
    from jupyterlab.labapp import LabApp

    folder = working_folder()
    own = [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{START}"]
    LabApp.launch_instance(argv=[*own, *arguments])
