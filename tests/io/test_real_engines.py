"""Real engines, started on CPUs by the printed scripts: needs the extra `engines`, and llama.cpp on the path.

docs/engines.md has what they printed.
"""

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import pipelab as pl
from pipelab.writeup.linear_rates import with_link_units

HERE = Path(__file__).parent
RPC = ["ggml-rpc-server", "-d", "CPU", "-H"]  # `docs/engines.md` says how to build it
SCHEDULES = (
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBH1", "ZBH2", "ZBV", "DualPipeV",
)  # fmt: skip
pytestmark = pytest.mark.nightly


def _needs(*packages):
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"pip install -e '.[engines]' for {missing}")


def _plan(layers, nodes):
    """A problem in which every cut fits, and a placement with these layers on GPUs of these hosts."""
    gpus = tuple(pl.GPU("A40", 1e4, node=node, node_gb_per_s=100) for node in nodes)
    cluster = pl.Cluster(gpus, np.full((len(nodes), len(nodes)), 10.0))
    model = pl.Model("m", sum(layers), 64, 64, 0.001)
    problem = pl.Problem(cluster, model, pl.Workload(100, 2), pl.writeup.load_coefficients())
    plan = pl.Placement.of([(n, (g,)) for g, n in enumerate(layers)])
    return with_link_units(problem, "tokens"), plan


class Scripts:
    """A plan's script on this machine, whose GPUs are stood in for by CPUs."""

    def __init__(self, folder, script, **variables):
        self.path, self.logs = folder / "plan.sh", folder / "logs"
        self.path.write_text(script, encoding="utf-8")
        self.variables = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SKIP": "version gpus",
            "LOGS": str(self.logs), "WAIT": "120", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        } | variables  # fmt: skip

    def start(self, *words):
        command = ["bash", str(self.path), *words]
        return subprocess.Popen(
            command, env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ends(self, done):
        said, errors = done.communicate(timeout=300)
        logs = [path.read_text()[-2000:] for path in self.logs.rglob("*.log")]
        assert done.returncode == 0, "\n".join([said, errors, *logs])
        return said


def _command(table):
    """Start a schedule alone: torchtitan deals chunks out in turn, so that no script has one of V shape."""
    train = str(HERE / "stand_ins" / "torchtitan" / "train.py")
    words = ["torchrun", "--nproc-per-node", "4", train, "--training.local_batch_size", "16"]
    words += ["--parallelism.pipeline_parallel_microbatch_size", "2"]
    words += ["--parallelism.pipeline_parallel_schedule_csv", str(table)]
    return shlex.join([*words, "--parallelism.module_fqns_per_model_part", *"abcdefgh"])


@_needs("torch")
def test_torch_runs_every_schedule(tmp_path):
    """Four processes have the gradients of one. One test, as torchrun has one port."""
    for number, name in enumerate(SCHEDULES):
        problem, plan = _plan((4, 4, 2, 2), "aaaa")
        step = pl.timeline_of(problem, plan, training=True, schedule=name, microbatches=8)
        (folder := tmp_path / str(number)).mkdir()
        if name in ("ZBV", "DualPipeV"):
            script = _command(pl.save(step.timeline.schedule, folder / "table.csv"))
        else:
            script = pl.settings(problem, step, "torchtitan").script
        scripts = Scripts(folder, script, CONFIG="a.b", PYTHONPATH=str(HERE / "stand_ins"))
        said = scripts.ends(scripts.start()) + "".join(
            log.read_text() for log in folder.rglob("0.log")
        )
        assert said.count(" 8 microbatches, error") == 4, name


@pytest.mark.parametrize("layers", [(4, 3, 2), (1, 6, 2), (3, 3, 3)])
@pytest.mark.skipif(shutil.which("llama-server") is None, reason="needs llama.cpp, built with RPC")
@_needs("gguf")
def test_layers_lie_where_llama_cpp_was_told_over_rpc(tmp_path, layers):
    """The third GPU, beside the program, is a third server: without a GPU the program has none."""
    model = tmp_path / "m.gguf"
    subprocess.run([sys.executable, HERE / "small_models.py", "gguf", model], check=True)
    net = f"127.{os.getpid() % 250 + 1}.{layers[0]}"
    script = pl.settings(*_plan(layers, "abc"), "llama.cpp").script.replace("-d CUDA0", "-d CPU")
    hosts = {"HOSTS": f"{net}.1 {net}.2 {net}.3", "LISTEN": f"{net}.3", "MODEL": str(model)}
    scripts = Scripts(tmp_path, script, **hosts)
    third = subprocess.Popen([*RPC, f"{net}.3", "-p", "50060"], stdout=subprocess.DEVNULL)
    others = [scripts.start(number) for number in "12"]
    try:
        said = scripts.ends(scripts.start("3", "--check", "--rpc", f"{net}.3:50060"))
    finally:
        for started in (third, *others):
            started.terminate()
            started.communicate(timeout=60)
    assert [started.returncode for started in others] == [143, 143]
    assert said.count(" holds layers ") == 3


@_needs("torch", "transformers", "accelerate")
def test_transformers_holds_the_layers_and_answers(tmp_path):
    subprocess.run([sys.executable, HERE / "small_models.py", "hf", tmp_path / "m"], check=True)
    script = pl.settings(*_plan((4, 5), "aa"), "transformers").script
    script = script.replace('": 0', '": "cpu"').replace('": 1', '": "disk"')
    scripts = Scripts(tmp_path, script, MODEL=str(tmp_path / "m"))
    assert "stage 2 holds layers 5-9" in scripts.ends(scripts.start("--check"))
    prompts = ("one", "two words", "three")
    said = scripts.ends(scripts.start(*prompts))
    assert all(prompt in said for prompt in prompts)
