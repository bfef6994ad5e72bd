"""The command line as a process of its own, and the notebooks that it copies."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import pipelab as pl
from pipelab.cli.command_line import app
from pipelab.files.bundled_folders import notebook_files


@pytest.mark.slow
def test_output_survives_a_terminal_of_another_code_page():
    environment = dict(os.environ, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    command = [sys.executable, "-m", "pipelab", "solve", "tiny"]
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


def test_ctrl_c_while_the_command_line_is_imported_is_answered():
    ended = subprocess.run([sys.executable, "-c", _PRESSED], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "pipelab: interrupted before it began\n"


def test_notebooks_are_copied_and_nothing_is_overwritten(tmp_path):
    mine = tmp_path / "mine" / "00_start_here.ipynb"
    mine.parent.mkdir()
    mine.write_text("my own work")
    copied = CliRunner().invoke(app, ["copy", str(mine.parent)]).stdout.splitlines()
    assert len(copied) == len(notebook_files()) - 1
    assert str(mine.parent / "data.md") in copied
    assert "every notebook is in" in CliRunner().invoke(app, ["copy", str(mine.parent)]).stdout
    assert mine.read_text() == "my own work"


def test_a_plan_is_kept_where_nobody_reads_what_is_printed(monkeypatch, tmp_path):
    def closed(_result):
        raise BrokenPipeError

    monkeypatch.setattr("pipelab.cli.commands.problems.print_result", closed)
    plan = tmp_path / "plan.json"
    CliRunner().invoke(app, ["solve", "tiny", "--output", str(plan)])
    tiny = pl.load_case("tiny")
    assert pl.load_placement(plan, tiny) == pl.solve(tiny).placement
