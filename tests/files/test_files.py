"""Files that cannot be written or read: the old one stays, and one sentence says which file, why, and what to do."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from limits import full_disk

import pipelab as pl
from pipelab.errors import InvalidData
from pipelab.files.reading_and_writing import write_to

POSIX = pytest.mark.skipif(os.name == "nt", reason="modes, links and special files of POSIX")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")


@POSIX
def test_a_replaced_file_keeps_its_mode_and_a_new_one_gets_the_umasks(tmp_path):
    path = tmp_path / "plan.csv"
    for kept in (0o600, 0o755):
        path.write_text("old")
        path.chmod(kept)
        write_to("test", path, "new")
        assert (path.stat().st_mode & 0o777, path.read_text()) == (kept, "new")
    before = os.umask(0o027)
    try:
        write_to("test", tmp_path / "new.csv", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "new.csv").stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.csv", "plan.csv"]


@POSIX
def test_what_a_symbolic_link_points_to_is_replaced_and_the_link_stays(tmp_path):
    target, link, chain = (tmp_path / name for name in ("target.csv", "link.csv", "chain.csv"))
    link.symlink_to("target.csv")
    chain.symlink_to(link)
    for text in ("new", "newer"):  # first where the link dangles
        write_to("test", chain, text)
        assert [path.is_symlink() for path in (target, link, chain)] == [False, True, True]
        assert target.read_text() == text
    link.unlink()
    link.symlink_to(chain)
    with pytest.raises(InvalidData, match=r"link\.csv: cannot be written \(Too many levels of"):
        write_to("save", link, "text")


@POSIX
def test_a_pipe_is_written_through(tmp_path):
    pipe, heard = tmp_path / "pipe.csv", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    write_to("test", pipe, "through")
    reader.join(10)
    assert heard == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(InvalidData, match=r"pipe\.csv: cannot be read: a device or a pipe"):
        pl.hardware.load_gpus(pipe)


@POSIX
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "plan.csv"
    path.write_text("old")
    told = r"plan\.csv: cannot be written \(File too large\): make room"
    with full_disk(), pytest.raises(InvalidData, match=told):
        write_to("save", path, "new " * 1000)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.csv"]


@POSIX
def test_what_is_in_the_way_is_named_with_its_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    refused = {
        tmp_path / "file" / "below" / "plan.csv": "a part of this path is a file",
        tmp_path / "folder": "expected the path of a file, not of a folder",
        tmp_path / ("x" * 5000): "expected a shorter path",
        "a\0b\udcff": "expected a path without such characters",
    }
    for path, remedy in refused.items():
        with pytest.raises(InvalidData, match=f"cannot be written.*: {remedy}") as caught:
            write_to("save", path, "text")
        assert len(str(caught.value)) < 600
        assert str(caught.value).isprintable()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_a_write_protected_file_is_not_replaced(tmp_path, monkeypatch):
    """Permission is asked of the file, not of its folder alone; root, who may write everywhere, is told no."""
    path = tmp_path / "plan.csv"
    path.write_text("old")
    monkeypatch.setattr("pipelab.files.reading_and_writing.os.access", lambda *_: False)
    with pytest.raises(InvalidData, match=r"cannot be written .* where you may write"):
        write_to("save", path, "new")
    assert path.read_text() == "old"


READERS = {
    "config.csv": lambda folder: pl.load_case(folder),
    "gpus.csv": lambda folder: pl.hardware.load_gpus(folder / "gpus.csv"),
    "config.json": lambda folder: pl.load_model(folder / "config.json"),
    "plan.json": lambda folder: pl.load_placement(folder / "plan.json"),
}


@pytest.mark.parametrize("name", READERS)
def test_an_unreadable_file_is_one_sentence(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidData, match=f"{name}: .*(of a folder|no such file)"):
        READERS[name](tmp_path)
    (tmp_path / name).rmdir()
    (tmp_path / name).write_text("parameter,value\n")

    def refusing(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refusing)  # as for everyone but root
    with pytest.raises(InvalidData, match=rf"{name}: cannot be read \(Permission denied\): .*may"):
        READERS[name](tmp_path)


@POSIX
@pytest.mark.parametrize("name", ["throughput_coefficients.csv", "layers.csv"])
def test_a_dangling_link_is_not_taken_for_a_file_that_a_case_may_lack(name, tmp_path):
    folder = pl.writeup.save_case(pl.load_case("tiny"), tmp_path / "mine")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("gone.csv")
    with pytest.raises(InvalidData, match=rf"{name}: is a symbolic link to .*gone\.csv, which is"):
        pl.load_case(folder)


def _run(*arguments, unbuffered="", **options):
    command = [sys.executable, "-m", "pipelab", *arguments]
    environment = dict(os.environ, PYTHONUNBUFFERED=unbuffered)
    return subprocess.run(
        command, **{"stderr": subprocess.PIPE, "timeout": 120, "env": environment, **options}
    )


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.nightly)])
def test_a_full_standard_output_is_one_sentence(unbuffered):
    """At the end, where Python empties its buffer; or at the first word, where it keeps none."""
    with open("/dev/full", "w") as full:
        done = _run("cases", stdout=full, unbuffered=unbuffered)
    told = "pipelab: standard output: cannot be written (No space left on device): make room"
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert done.stderr.decode().startswith(told)


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("cases", ""), pytest.param("count tiny", "1", marks=pytest.mark.nightly)],
)
def test_a_reader_who_leaves_early_hears_nothing(command, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    done = _run(*command.split(), stdout=writer, unbuffered=unbuffered)
    os.close(writer)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr
    assert b"roken pipe" not in done.stderr
