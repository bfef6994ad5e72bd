"""Files that cannot be written or read: the old one stays, and one sentence says which file, why, and what to do."""

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from limits import full_disk

import pipelab as pl
from pipelab.cli.open_notebooks import copy_notebooks
from pipelab.errors import InvalidData
from pipelab.files.bundled_folders import notebook_files, notebooks_dir
from pipelab.files.csv_rows import read_rows
from pipelab.files.reading_and_writing import refused, write_to

POSIX = pytest.mark.skipif(os.name == "nt", reason="modes, links and special files of POSIX")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full and /proc")
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@POSIX
def test_a_replaced_file_keeps_its_mode_and_a_new_one_gets_the_umasks(tmp_path):
    path = tmp_path / "plan.csv"
    for kept in (0o600, 0o640, 0o755):
        path.write_text("old")
        path.chmod(kept)
        write_to("test", path, "new")
        assert (mode(path), path.read_text()) == (kept, "new")
    before = os.umask(0o027)
    try:
        write_to("test", tmp_path / "new.csv", "new")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new.csv") == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.csv", "plan.csv"]


@POSIX
def test_what_a_symbolic_link_points_to_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link, chain = (
        tmp_path / "elsewhere" / "plan.csv",
        tmp_path / "plan.csv",
        tmp_path / "chain.csv",
    )
    link.symlink_to(Path("elsewhere") / "plan.csv")
    chain.symlink_to(link)
    for text in ("new", "newer"):  # first where the link dangles
        write_to("test", chain, text)
        assert link.is_symlink()
        assert chain.is_symlink()
        assert not target.is_symlink()
        assert target.read_text() == text
    link.unlink()
    link.symlink_to(chain)
    with pytest.raises(
        InvalidData, match=r"plan\.csv: cannot be written \(Too many levels of symbolic links\): "
    ):
        write_to("save", link, "text")


@POSIX
def test_a_hard_link_is_cut_and_the_docstring_says_so(tmp_path):
    path, other = tmp_path / "plan.csv", tmp_path / "other.csv"
    path.write_text("old")
    os.link(path, other)
    write_to("test", path, "new")
    assert (path.read_text(), other.read_text()) == ("new", "old")
    assert "A hard link is cut" in write_to.__doc__


def test_a_pipe_without_a_reader_is_one_sentence():
    error = BrokenPipeError(errno.EPIPE, "Broken pipe")
    told = "pipe.csv: cannot be written (Broken pipe): the reading program has exited; restart both"
    assert str(refused("pipe.csv", "write", error)) == told


@POSIX
def test_special_files_are_written_through(tmp_path):
    pipe, link = tmp_path / "pipe.csv", tmp_path / "link.csv"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        heard = []
        reader = threading.Thread(
            target=lambda heard=heard: heard.append(pipe.read_text()), daemon=True
        )
        reader.start()
        write_to("test", path, "through")
        reader.join(10)
        assert heard == ["through"]
        assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


@POSIX
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "plan.csv"
    path.write_text("old")
    with (
        full_disk(),
        pytest.raises(
            InvalidData, match=r"plan\.csv: cannot be written \(File too large\): make room"
        ),
    ):
        write_to("save", path, "new " * 1000)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.csv"]


@LINUX
def test_a_full_device_is_named_and_stays_one(tmp_path):
    """A device of the test's own: were the code wrong, it would replace the computer's."""
    full, link = tmp_path / "full.csv", tmp_path / "link.csv"
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    except PermissionError:
        pytest.skip("only root makes devices")
    link.symlink_to(full)
    for path in (full, link):
        with pytest.raises(
            InvalidData, match=r"\.csv: cannot be written \(No space left on device\): make room"
        ):
            write_to("save", path, "text")
        assert stat.S_ISCHR(os.stat(path).st_mode)
    assert link.is_symlink()


@POSIX
def test_what_is_in_the_way_is_named_with_its_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    refused = {
        tmp_path / "file" / "below" / "plan.csv": "a part of this path is a file",
        tmp_path / "folder": "expected the path of a file, not of a folder",
        tmp_path / ("x" * 5000): "expected a shorter path",
        "a\0b": "expected a path without such characters",
        "a\udcff\ud800b": "expected a path without such characters",
    }
    for path, remedy in refused.items():
        with pytest.raises(InvalidData, match=f"cannot be written.*: {remedy}") as caught:
            write_to("save", path, "text")
        assert len(str(caught.value)) < 600
        assert str(caught.value).isprintable()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


@POSIX
@pytest.mark.skipif(ROOT, reason="root may write everywhere")
def test_what_is_write_protected_stays(tmp_path):
    path = tmp_path / "plan.csv"
    path.write_text("old")
    path.chmod(0o400)
    with pytest.raises(InvalidData, match=r"cannot be written .* where you may write"):
        write_to("save", path, "new")
    path.chmod(0o600)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InvalidData, match=r"cannot be written .* where you may write"):
            write_to("save", path, "new")
    finally:
        tmp_path.chmod(0o700)
    assert path.read_text() == "old"


def test_a_write_protected_file_is_not_replaced(tmp_path, monkeypatch):
    """What root's rights hide above: permission is asked of the file, not of its folder alone."""
    path = tmp_path / "plan.csv"
    path.write_text("old")
    monkeypatch.setattr("pipelab.files.reading_and_writing.os.access", lambda *_: False)
    with pytest.raises(InvalidData, match=r"cannot be written .* where you may write"):
        write_to("save", path, "new")
    assert path.read_text() == "old"


def _denied(monkeypatch, path):
    """Have the system refuse to open one file, as it does for everyone but root."""
    plain = Path.open

    def refusing(self, *args, **kwargs):
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refusing)


READERS = {
    "config.csv": lambda folder: pl.load_case(folder),
    "rates.csv": lambda folder: pl.writeup.load_coefficients(folder / "rates.csv"),
    "gpus.csv": lambda folder: pl.hardware.load_gpus(folder / "gpus.csv"),
    "models.csv": lambda folder: pl.hardware.models(folder / "models.csv"),
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
    _denied(monkeypatch, tmp_path / name)
    with pytest.raises(
        InvalidData, match=rf"{name}: cannot be read \(Permission denied\): .*may read"
    ):
        READERS[name](tmp_path)


@LINUX
def test_a_file_that_the_system_cannot_read_is_one_sentence():
    with pytest.raises(
        InvalidData, match=r"^/proc/self/mem: cannot be read \(Input/output error\)"
    ):
        read_rows(Path("/proc/self/mem"), ())


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "x" * 300 + "/y"])
def test_names_that_no_file_has_are_refused_like_others(name):
    for load in (
        pl.load_case,
        pl.writeup.load_coefficients,
        pl.hardware.load_gpus,
        pl.hardware.models,
        pl.hardware.clusters,
    ):
        with pytest.raises(pl.PipelabError) as caught:
            load(name)
        assert len(str(caught.value)) < 1000
        assert "\0" not in str(caught.value)
    with pytest.raises(InvalidData):
        pl.load_placement(name + ".json")


@POSIX
@pytest.mark.parametrize("name", ["throughput_coefficients.csv", "layers.csv", "gpu_pool.csv"])
def test_a_dangling_link_in_a_case_is_named(name, tmp_path):
    folder = pl.writeup.save_case(pl.load_case("tiny"), tmp_path / "mine")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("gone.csv")
    with pytest.raises(
        InvalidData, match=rf"{name}: is a symbolic link to .*gone\.csv, which is not there"
    ):
        pl.load_case(folder)


@POSIX
def test_a_case_on_a_full_disk_is_one_sentence(tmp_path):
    with (
        full_disk(100),
        pytest.raises(InvalidData, match=r"config\.csv: cannot be written \(File too large\)"),
    ):
        pl.writeup.save_case(pl.load_case("tiny"), tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


@POSIX
def test_notebooks_on_a_full_disk_are_whole_or_not_there(tmp_path):
    sizes = sorted(p.stat().st_size for p in notebook_files().values())
    with (
        full_disk(sizes[len(sizes) // 2]),
        pytest.raises(InvalidData, match=r"\.(ipynb|md): cannot be written .*make room"),
    ):
        copy_notebooks(tmp_path / "mine")
    for path in (tmp_path / "mine").rglob("*"):
        if path.is_file():
            assert (
                path.read_bytes()
                == (notebooks_dir() / path.relative_to(tmp_path / "mine")).read_bytes()
            )
    copy_notebooks(tmp_path / "mine")
    assert len(list((tmp_path / "mine").rglob("*.[im]*"))) == len(sizes)


def test_a_torn_notebook_is_copied_again_and_an_edited_one_is_not(tmp_path):
    copy_notebooks(tmp_path)
    whole = (notebooks_dir() / "00_start_here.ipynb").read_bytes()
    torn, empty, mine = (
        tmp_path / f"{name}.ipynb" for name in ("00_start_here", "01_layers", "02_x")
    )
    names = sorted(p.name for p in tmp_path.glob("*.ipynb"))
    torn, empty, mine = (tmp_path / name for name in names[:3])
    torn.write_bytes(whole[: len(whole) // 2])
    empty.write_bytes(b"")
    edited = json.loads(mine.read_text(encoding="utf-8"))
    edited["cells"] = edited["cells"][:3]
    mine.write_text(json.dumps(edited), encoding="utf-8")
    broken = tmp_path / names[3]
    broken.write_text("{ my own work, torn by me", encoding="utf-8")
    assert copy_notebooks(tmp_path) == [torn, empty]
    assert torn.read_bytes() == whole
    assert json.loads(mine.read_text(encoding="utf-8")) == edited
    assert broken.read_text(encoding="utf-8").startswith("{ my own work")


def run(*arguments, **options):
    command = [sys.executable, "-m", "pipelab.cli.command_line", *arguments]
    environment = dict(os.environ, PYTHONUNBUFFERED=options.pop("unbuffered", ""))
    return subprocess.run(
        command, **{"capture_output": True, "timeout": 120, "env": environment, **options}
    )


def one_sentence(done, *words):
    """Exit status 2 and one line on standard error that says all of these words."""
    told = done.stderr.decode()
    assert done.returncode == 2, told
    assert told.startswith("pipelab: ")
    assert told.count("\n") == 1, told
    assert all(word in told for word in words), told


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("count tiny --json", ""), ("cases", "1"), ("reproduce pmetal --csv -", "")],
)
def test_a_full_standard_output_is_one_sentence(command, unbuffered):
    """At the end, where Python empties its buffer; or at the first word, where it keeps none."""
    with open("/dev/full", "w") as full:
        done = run(
            *command.split(),
            stdout=full,
            stderr=subprocess.PIPE,
            capture_output=False,
            unbuffered=unbuffered,
        )
    done.stderr = done.stderr[done.stderr.find(b"pipelab: ") :]  # after the bar of progress
    one_sentence(done, "standard output: cannot be written (No space left on device): make room")


@pytest.mark.slow
@LINUX
def test_a_full_standard_error_is_no_traceback():
    with open("/dev/full", "w") as full:
        assert (
            run(
                "solve", "tinny", stdout=subprocess.PIPE, stderr=full, capture_output=False
            ).returncode
            == 2
        )


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("cases", ""), ("count tiny", "1"), ("reproduce pmetal --html -", "")],
)
def test_a_reader_who_leaves_early_hears_nothing(command, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    done = run(
        *command.split(),
        stdout=writer,
        stderr=subprocess.PIPE,
        capture_output=False,
        unbuffered=unbuffered,
    )
    os.close(writer)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr
    assert b"roken pipe" not in done.stderr


@pytest.mark.slow
def test_a_closed_standard_output_is_no_traceback():
    done = (
        run("count", "tiny", preexec_fn=lambda: os.close(1))
        if os.name != "nt"
        else run("count", "tiny")
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
@LINUX
def test_a_folder_whose_name_is_no_text_is_no_obstacle(tmp_path):
    done = run("copy", b"\xff", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout.splitlines()) == len(list(tmp_path.rglob("*.[im]*"))) > 0
    one_sentence(run("solve", b"\xfe", cwd=tmp_path), "neither a bundled case nor a folder")
