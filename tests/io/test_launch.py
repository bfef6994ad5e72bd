"""Launch scripts that are started and stopped for real, with stand-ins for the engines, and fail in every way."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import pipelab as pl
from pipelab.hardware.engine_rules import known_rules
from pipelab.writeup.linear_rates import with_link_units

ENGINES = tuple(known_rules())
PROGRAMS = (
    "vllm",
    "python3",
    "torchrun",
    "trtllm-serve",
    "llama-server",
    "ggml-rpc-server",
    "nvidia-smi",
)
NAMES = "NVIDIA A40"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("bash") is None,
    reason="needs bash, and the addresses 127.*",
)


class Hosts:
    """The hosts of a plan, all on this machine: each has an address of its own."""

    def __init__(self, folder, engine, seed):
        self.rng = rng = np.random.default_rng([seed, ENGINES.index(engine)])
        self.folder, self.engine = folder, engine
        self.count = 1 if known_rules()[engine].one_host else int(rng.integers(1, 3))
        nodes = ["a"] * 3 if self.count == 1 else ["a", "b", "a"]
        net = "127.{}.{}".format(*divmod(os.getpid() % 60_000 + 1_000, 256))
        self.addresses = [f"{net}.{i + 1}" for i in range(self.count)]
        hosts = [self.addresses[ord(node) - 97] for node in nodes]
        gpus = tuple(pl.GPU("A40", 1e4, node=node, node_gb_per_s=100) for node in nodes)
        index = (0, 1, 2) if self.count == 1 else (0, 0, 1)
        cluster = pl.Cluster(gpus, np.full((3, 3), 10.0), index=index)
        model, load = pl.Model("m", 9, 64, 64, 0.001), pl.Workload(10, 2)
        problem = pl.Problem(cluster, model, load, pl.writeup.load_coefficients())
        problem = with_link_units(problem, "tokens")
        plan = pl.Placement.of([(4, (0,)), (3, (1,)), (2, (2,))])
        if engine == "torchtitan":  # with a file on its schedule
            plan = pl.timeline_of(problem, plan, training=True, schedule="ZBH1", microbatches=6)
        self.script = folder / "plan.sh"
        self.script.write_text(pl.settings(problem, plan, engine, hosts=hosts).script)
        self.bin, self.began, self.logs = (folder / name for name in ("bin", "began", "logs"))
        for made in (self.bin, self.began, folder / "megatron" / "core"):
            made.mkdir(parents=True)
        for name in PROGRAMS:
            self.program(name)
        self.have("99999.0.0")

    def program(self, name):
        """Put the stand-in on the path under this name."""
        text = (Path(__file__).parent / "stand_ins" / "program.py").read_text(encoding="utf-8")
        (self.bin / name).write_text(f"#!{sys.executable} -SE\n{text}", encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def have(self, version):
        """Have the engine installed in this version."""
        self.version = version
        parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=False)
        text = "".join(f"{name} = {number}\n" for name, number in parts)
        (self.folder / "megatron" / "core" / "package_info.py").write_text(text)

    def start(self, number=1, fault="", gpus=((0, NAMES), (1, NAMES), (2, NAMES)), **variables):
        """Start the script of a host."""
        environment = os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "MODEL": "m", "MEGATRON": str(self.folder),
            "CONFIG": "a.b", "LISTEN": self.addresses[0], "LOGS": str(self.logs), "GRACE": "20",
            "BEGAN": str(self.began), "FAULT": fault, "HAVE": self.version,
            "GPUS": "\n".join(f"{i}, GPU-{i}, {name}" for i, name in gpus),
        } | variables  # fmt: skip
        words = [str(number)] if self.count > 1 else ["a prompt"]
        return subprocess.Popen(
            ["bash", str(self.script), *words], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            # a suite in the background of a script has SIGINT ignored, which bash then cannot trap
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def start_all(self, **options):
        """Start the scripts of all hosts."""
        return [self.start(number, **options) for number in range(1, self.count + 1)]

    def ends(self, done, status, line):
        """Assert with what a script ends, and that the last line that it says itself is this one."""
        _, said = done.communicate(timeout=60)
        lines = ["", *(text for text in said.splitlines() if text.startswith("plan.sh: "))]
        assert (done.returncode, bool(re.search(line, lines[-1]))) == (status, True), said

    def left(self):
        """List the processes that scripts have started."""
        alive = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                alive += [process] * (process.environ().get("BEGAN") == str(self.began))
        return alive

    def files(self):
        return {path for path in self.folder.rglob("*") if self.logs not in (path, *path.parents)}


@pytest.fixture(
    params=[
        pytest.param(
            (engine, seed), marks=[pytest.mark.nightly] * (seed > 0), id=f"{engine}-{seed}"
        )
        for engine in ENGINES
        for seed in range(5)
    ]
)
def hosts(request, tmp_path):
    made = Hosts(tmp_path, *request.param)
    before = made.files()
    yield made
    left = made.left()
    for process in left:
        process.kill()
    assert left == []
    assert {
        path for path in made.files() - before if not {made.began, made.bin} & {*path.parents}
    } == set()


def _wait(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)


def _serving(started):
    for done in started:
        assert "running, with logs" in done.stderr.readline()


REFUSED = {
    "a port is taken": r"port \d+ is taken: end what listens there",
    "another GPU": "GPU 1 is NVIDIA T400: expected NVIDIA A40",
    "fewer GPUs": "this host has 1 others|nvidia-smi shows no GPU",
    "an index that is not there": "GPU 1: this host has . others",
    "an old version": r" 0(\.0\.1)?: expected .* or newer",
    "no engine": "is not found, or does not start: install it",
    "a full disk": "cannot be written: make room",
    "a name that does not resolve": "= no-host.invalid: the name does not resolve",
    "an address of another machine": "198.51.100.7 is another machine",
}


@pytest.mark.quick(9)
@pytest.mark.parametrize("way", REFUSED)
def test_what_is_wrong_is_said_before_anything_starts(hosts, way):
    options, text = {}, hosts.script.read_text()
    ports = re.search(r"^ports=\((.*)\)$", text, re.M)[1]
    if way == "a port is taken":
        if not (taken := re.findall(r'"1 (\d+)"', ports)):
            pytest.skip("it listens at no port")
        other = socket.create_server((hosts.addresses[0], int(taken[-1])))
    elif way == "another GPU":
        options["gpus"] = ((0, NAMES), (1, "NVIDIA T400"), (2, NAMES))
    elif way == "fewer GPUs":
        options["gpus"] = ((0, NAMES),)
    elif way == "an index that is not there":
        options["gpus"] = ((0, NAMES), (3, NAMES), (4, NAMES))
    elif way == "an old version":
        hosts.have("0.0.1")
    elif way == "no engine":
        hosts.have("")
    elif way == "a full disk":
        hosts.program("mkdir")
    else:
        name = "no-host.invalid" if "resolve" in way else "198.51.100.7"
        hosts.script.write_text(text.replace(hosts.addresses[0], name))
    hosts.ends(hosts.start(**options), 2, REFUSED[way])
    assert list(hosts.began.iterdir()) == []
    if way == "a port is taken":
        other.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hangs", "stubborn", ""])
def test_a_signal_leaves_nothing(hosts, fault):
    """At the start, of engines that do not end by themselves, and while they serve."""
    ends = ["SIGTERM", "SIGINT", "SIGHUP"]  # but for one that is ignored, as under `nohup`
    heard = [e for e in ends if signal.getsignal(signal.Signals[e]) is not signal.SIG_IGN]
    end = hosts.rng.choice(heard)
    started = hosts.start_all(fault=fault, GRACE="1" if fault == "stubborn" else "20")
    if fault != "hangs":
        _serving(started)
    _wait(lambda: len({path.parent for path in hosts.logs.glob("*/*.log")}) == hosts.count)
    _wait(lambda: len([*hosts.began.iterdir()]) == len([*hosts.logs.glob("*/*.log")]))
    for done in started:
        done.send_signal(signal.Signals[end])
    for done in started:
        line = "killed what had not ended after 1 seconds" if fault == "stubborn" else ""
        hosts.ends(done, 128 + signal.Signals[end], line)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "status"), [("fails", 4), ("dies", 5)])
def test_an_engine_that_fails_ends_all_of_its_host(hosts, fault, status):
    hosts.ends(hosts.start(fault=fault), status, f"ended with status {status}: see ")
    assert any(hosts.logs.rglob("*.log"))


@pytest.mark.slow
def test_a_second_run_leaves_the_first_alone(hosts):
    started = hosts.start_all()
    _serving(started)
    hosts.ends(hosts.start(), 2, r"runs here already: end it first: kill \d+")
    assert all(done.poll() is None for done in started)
    for done in started:
        done.terminate()
        hosts.ends(done, 143, "")


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_waited_for_within_bounds(hosts):
    if hosts.count == 1:
        pytest.skip("it has one host")
    number = 1 if hosts.engine == "llama.cpp" else 2
    hosts.ends(
        hosts.start(number, WAIT="1"), 2, r"does not answer within 1 seconds: start that host's"
    )


def test_a_dry_run_prints_what_would_be_started(hosts):
    shutil.rmtree(hosts.bin)
    words = ["1"] * (hosts.count > 1) + ["--dry-run", "a 'b'"]
    given = {"MODEL": "m", "MEGATRON": "/m", "CONFIG": "a.b", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", str(hosts.script), *words], env=given, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "CUDA_VISIBLE_DEVICES=" in done.stdout
    assert r"""'a '\''b'\'''""" in done.stdout
    assert not hosts.logs.exists()
