"""Open JupyterLab on the notebooks; copy them to a folder of the reader's own."""

import json
import os
from pathlib import Path

from pipelab.cli.student import is_solution, without_solutions
from pipelab.errors import InvalidValue
from pipelab.files.bundled_folders import in_clone, notebook_files, notebooks_dir
from pipelab.files.reading_and_writing import path_of, write_to

START = "00_start_here.ipynb"


def copy_notebooks(folder: str | Path, *, student: bool = False) -> list[Path]:
    """Copy the notebooks into `folder`; a file that is there already stays as it is.

    Parameters
    ----------
    folder : path
        New, or one that is there.
    student : bool
        Leave out all solutions.

    Returns
    -------
    list of Path
        The files that were copied.

    Raises
    ------
    InvalidValue
        `folder` is empty text, or a file.
    InvalidData
        Something there cannot be read or written. What was copied before is whole, and another run
        goes on.
    """
    folder = path_of("copy", folder, "folder")
    if os.path.isfile(folder):
        expected = "is a file; expected a folder to copy the notebooks into"
        raise InvalidValue("copy", [("folder", str(folder), expected)])
    copied = []
    for source in notebook_files().values():
        name, whole = source.relative_to(notebooks_dir()), source.read_bytes()
        if student and is_solution(name.as_posix()):
            continue
        if student and name.suffix == ".ipynb":
            notebook = without_solutions(json.loads(whole))
            whole = f"{json.dumps(notebook, indent=1, ensure_ascii=False)}\n".encode()
        target = folder / name
        if not os.path.lexists(target):
            write_to("copy", target, whole)
            copied.append(target)
    return copied


def open_lab(arguments: list[str]) -> None:
    """Start JupyterLab on the first notebook, with its own protection: loopback and a token.

    Parameters
    ----------
    arguments : list of str
        Passed on to JupyterLab, such as `--no-browser` or `--port=9000`.
    """
    from jupyterlab.labapp import LabApp

    folder = notebooks_dir()
    if not in_clone():  # then a copy in the current folder
        folder = Path.cwd() / "pipelab-notebooks"
        copy_notebooks(folder)
    options = [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{START}"]
    LabApp.launch_instance(argv=[*options, *arguments])
