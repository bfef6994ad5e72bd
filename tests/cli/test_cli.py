"""The command line as a process of its own, and the notebooks that it copies."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pipelab.cli.command_line import app
from pipelab.cli.open_notebooks import copy_notebooks, working_folder
from pipelab.files.bundled_folders import notebook_files, notebooks_dir


@pytest.mark.slow
def test_output_survives_a_terminal_of_another_code_page():
    environment = dict(os.environ, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    command = [sys.executable, "-m", "pipelab.cli.command_line", "solve", "tiny"]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"217.5 tokens/s")


_PRESSED = """
import importlib.abc, signal, sys

class Pressed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Pressed())
sys.argv = ["pipelab", "cases"]
from pipelab.cli.entry import main

main()
"""


@pytest.mark.slow
def test_ctrl_c_while_the_command_line_is_imported_is_answered():
    ended = subprocess.run([sys.executable, "-c", _PRESSED], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "pipelab: interrupted before it began\n"
    for module in ("pipelab.cli.entry", "pipelab"):
        command = [sys.executable, "-m", module, "cases"]
        assert "tiny" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_notebooks_are_copied_and_nothing_is_overwritten(tmp_path):
    folder = tmp_path / "mine"
    copied = copy_notebooks(folder)
    assert len(copied) == len(notebook_files())
    assert folder / "data.md" in copied
    mine = folder / "00_start_here.ipynb"
    mine.write_text("my own work")
    assert copy_notebooks(folder) == []
    assert mine.read_text() == "my own work"
    assert "every notebook is in" in CliRunner().invoke(app, ["copy", str(folder)]).stdout
    told = CliRunner().invoke(app, ["copy", "--help"]).stdout
    assert "only a torn copy" in " ".join(told.replace("│", "").split())


def test_a_clone_opens_its_own_notebooks():
    assert working_folder() == notebooks_dir()
    assert (notebooks_dir() / "00_start_here.ipynb").is_file()
