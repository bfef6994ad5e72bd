"""The command line, run as a user runs it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from pipelab.cli.open_notebooks import copy_notebooks, working_folder
from pipelab.files.bundled_folders import data_dir, notebook_files, notebooks_dir


def run(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "pipelab.cli.command_line", *arguments],
        capture_output=True, text=True, cwd=cwd, timeout=300,
        encoding="utf-8",
    )  # fmt: skip


@pytest.mark.slow
def test_solve_prints_the_placement():
    done = run("solve", "tiny", "--max-gpus", "2")
    assert done.returncode == 0
    assert done.stdout.startswith("301.8 tokens/s with 1 in flight, proven optimal")
    assert "2 × A100" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_a_model_on_gpus_needs_no_case():
    done = run("solve", "--model", "Llama-3-8B", "--gpus", "h100=1,t4=2", "--max-gpus", "1")
    assert done.returncode == 0, done.stderr
    assert "proven optimal" in done.stdout.splitlines()[0]
    assert "1 × H100-SXM" in done.stdout
    assert done.stderr == "pipelab: h100 is taken for H100-SXM, of H100-SXM, H100-PCIe\n"


@pytest.mark.slow
def test_a_large_case_is_answered_without_naming_a_method():
    """As one joint ILP, medium needs more memory than machines have."""
    done = run("solve", "medium")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("264.2 tokens/s, proven optimal")
    assert second.startswith("Method: aggregated, HiGHS 1")


@pytest.mark.slow
def test_solve_prints_links_too(tmp_path):
    shutil.copytree(data_dir() / "cases" / "tiny", tmp_path / "mine")
    config = tmp_path / "mine" / "config.csv"
    config.write_text(
        config.read_text().replace("layer_weight_memory_gb,0.5", "layer_weight_memory_gb,25")
    )
    done = run("solve", str(tmp_path / "mine"))
    assert "slowest_pair" in done.stdout
    assert "throughput_transfers_per_s" in done.stdout


@pytest.mark.slow
def test_output_survives_a_terminal_of_another_code_page():
    environment = dict(os.environ, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    command = [sys.executable, "-m", "pipelab.cli.command_line", "solve", "tiny"]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_no_placement_is_exit_status_1(tmp_path):
    shutil.copytree(data_dir() / "cases" / "tiny", tmp_path / "mine")
    config = tmp_path / "mine" / "config.csv"
    config.write_text(
        config.read_text().replace("layer_weight_memory_gb,0.5", "layer_weight_memory_gb,90")
    )
    done = run("solve", str(tmp_path / "mine"))
    assert done.returncode == 1
    assert "No placement exists: layer 1 alone needs 91.64 GB" in done.stdout


@pytest.mark.slow
def test_json_is_for_programs():
    answer = json.loads(
        run("solve", "tiny", "--max-gpus", "2", "--method", "joint", "--json").stdout
    )
    assert answer["status"] == "optimal"
    assert answer["placement"]["stages"] == [{"first_layer": 1, "last_layer": 4, "gpus": [0, 1]}]
    assert answer["size"]["variables"] == 1041
    assert (
        answer["bound_tokens_per_s"] == answer["throughput_tokens_per_s"] == pytest.approx(301.784)
    )


@pytest.mark.slow
def test_a_folder_works_in_place_of_a_case(tmp_path):
    shutil.copytree(data_dir() / "cases" / "tiny", tmp_path / "mine")
    done = run("solve", "mine", "--max-gpus", "1", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["throughput_tokens_per_s"] == pytest.approx(217.52)


@pytest.mark.slow
def test_rules_can_be_set():
    done = run("solve", "tiny", "--max-gpus", "4", "--batch-split", "balanced", "--json")
    assert json.loads(done.stdout)["throughput_tokens_per_s"] == pytest.approx(443.85, abs=0.005)


@pytest.mark.slow
def test_a_plan_goes_to_a_file_and_from_there_to_an_engine(tmp_path):
    name = "plan.json"
    done = run("solve", "tiny", "--max-gpus", "1", "--json", "--output", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rate = json.loads(done.stdout)["throughput_tokens_per_s"]
    saved = json.loads((tmp_path / name).read_text("utf-8"))
    assert min(s["throughput_tokens_per_s"] for s in saved["stages"]) == rate
    del saved["problem"]
    (tmp_path / "other.json").write_text(json.dumps(saved), "utf-8")
    for plan in ((name,), ("other.json", "--case", "tiny")):
        told = ("settings", *plan, "--engine", "vLLM", "--hosts", "10.0.0.1")
        done = run(*told, "--output", "serve.sh", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert "export VLLM_PP_LAYER_PARTITION=4\n" in (tmp_path / "serve.sh").read_text("utf-8")
    direct = run("settings", "tiny", "--engine", "vLLM", "--hosts", "10.0.0.1")
    assert direct.stdout == (tmp_path / "serve.sh").read_text("utf-8")


@pytest.mark.slow
def test_settings_of_a_case_without_a_placement_are_exit_status_1(tmp_path):
    shutil.copytree(data_dir() / "cases" / "tiny", tmp_path / "mine")
    config = tmp_path / "mine" / "config.csv"
    config.write_text(
        config.read_text().replace("layer_weight_memory_gb,0.5", "layer_weight_memory_gb,90")
    )
    done = run("settings", str(tmp_path / "mine"), "--engine", "vLLM")
    assert done.returncode == 1
    assert done.stdout.startswith("No plan that vLLM can start exists")


@pytest.mark.slow
def test_count_is_exact_and_instant():
    done = run("count", "demo", "--max-gpus", "3", "--json")
    assert json.loads(done.stdout)["variables"] == 9_887_608_011
    assert "9,887,608,011" in run("count", "demo", "--max-gpus", "3").stdout


REFUSED = {
    "typo": (("solve", "tinny"), "did you mean 'tiny'"),
    "no gpu": (("solve", "tiny", "--max-gpus", "0"), "max_gpus_per_stage = 0: expected at least 1"),
    "too large": (
        ("solve", "demo", "--max-gpus", "3", "--method", "joint"),
        "9,887,608,011 variables",
    ),
    "method": (("solve", "tiny", "--method", "jiont"), "did you mean 'joint'"),
    "form": (
        ("solve", "tiny", "--form", "tight"),
        "method 'auto' has no option 'form'; name a method that has it: joint",
    ),
    "split": (("solve", "tiny", "--batch-split", "odd"), "expected 'even' or 'balanced'"),
    "engine": (("settings", "tiny", "--engine", "vlm"), "did you mean 'vLLM'"),
    "case of a case": (("settings", "tiny", "--case", "tiny", "--engine", "vLLM"), "--case"),
    "no plan": (("settings", "gone.json", "--engine", "vLLM"), "gone.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_one_sentence_and_status_2(name):
    arguments, message = REFUSED[name]
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("pipelab: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_doctor_lets_every_solver_solve_tiny():
    done = run("doctor")
    assert done.returncode == 0, done.stdout
    for solver in ("SCIP through PySCIPOpt", "HiGHS through cvxpy"):
        line = next(line for line in done.stdout.splitlines() if solver in line)
        assert line.startswith("ok")
        assert "tiny: 301.784 tokens/s" in line
    assert "NO" not in done.stdout.split()


@pytest.mark.slow
def test_doctor_tells_a_solver_that_does_not_answer(monkeypatch):
    from pipelab.cli import health as doctor

    def broken():
        raise ImportError("no such library")

    monkeypatch.setattr(doctor, "_with_scip", broken)
    findings = {f.what: f for f in doctor.examine()}
    assert not findings["SCIP through PySCIPOpt"].ok
    assert "no such library" in findings["SCIP through PySCIPOpt"].found
    assert findings["HiGHS through cvxpy"].ok


@pytest.mark.slow
def test_cases_are_listed():
    assert "65 GPUs: 5 × A100" in run("cases").stdout


@pytest.mark.slow
def test_notebooks_are_copied_and_nothing_is_overwritten(tmp_path):
    copied = copy_notebooks(tmp_path / "mine")
    assert len(copied) == len(notebook_files())
    assert tmp_path / "mine" / "data.md" in copied
    mine = tmp_path / "mine" / "00_start_here.ipynb"
    mine.write_text("my own work")
    assert copy_notebooks(tmp_path / "mine") == []
    assert mine.read_text() == "my own work"
    assert "every notebook is in" in run("copy", str(tmp_path / "mine")).stdout
    assert "only a torn copy" in " ".join(run("copy", "--help").stdout.replace("│", "").split())


def test_a_clone_opens_its_own_notebooks():
    assert working_folder() == notebooks_dir()
    assert (notebooks_dir() / "00_start_here.ipynb").is_file()
