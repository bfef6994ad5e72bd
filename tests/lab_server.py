"""A JupyterLab on loopback for the browser tests: one for a whole run, with settings and a folder of its own."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# As `pipelab.cli.open_notebooks` does; `python -m jupyterlab` takes 2.6 s more.
_LAUNCH = """
from jupyterlab.labapp import main
main()
"""


@dataclass(frozen=True)
class LabServer:
    """A JupyterLab that runs: where it listens, and the folder that it serves."""

    address: str
    token: str
    root: Path

    @contextmanager
    def serving(self, notebooks: Path) -> Iterator[str]:
        """Serve a copy of a folder of notebooks; its name below the root. Its kernels end with it."""
        folder = Path(tempfile.mkdtemp(prefix="notebooks_", dir=self.root))
        shutil.copytree(notebooks, folder, dirs_exist_ok=True)
        try:
            yield folder.name
        finally:
            for kernel in self._ask("kernels"):
                self._ask(f"kernels/{kernel['id']}", "DELETE")
            shutil.rmtree(folder, ignore_errors=True)

    def _ask(self, what: str, method: str = "GET"):
        request = urllib.request.Request(
            f"{self.address}/api/{what}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            text = reply.read()
        return json.loads(text) if text else None


@contextmanager
def lab_server() -> Iterator[LabServer]:
    """Start a JupyterLab, and end it with all its kernels."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "served"
        root.mkdir()
        token, port = secrets.token_hex(16), _free_port()
        server = _start(root, Path(scratch), token, port)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_up(f"{address}/api/status?token={token}", server, Path(scratch) / "lab.log")
            yield LabServer(address, token, root)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _start(root: Path, scratch: Path, token: str, port: int) -> subprocess.Popen:
    folders = {name: str(scratch / name) for name in ("config", "settings", "workspaces")}
    environment = dict(
        os.environ,
        JUPYTER_CONFIG_DIR=folders["config"],
        JUPYTERLAB_SETTINGS_DIR=folders["settings"],
        JUPYTERLAB_WORKSPACES_DIR=folders["workspaces"],
    )
    # No news pop-up over the page, no look for updates; all cells drawn, not only those in sight.
    _settings(scratch, "apputils-extension", "notification",
              {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True})  # fmt: skip
    _settings(scratch, "notebook-extension", "tracker", {"windowingMode": "none"})
    command = [
        sys.executable, "-c", _LAUNCH, "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
        f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}", "--ServerApp.port_retries=0",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    with (scratch / "lab.log").open("w") as log:
        return subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def _settings(scratch: Path, extension: str, plugin: str, values: dict) -> None:
    folder = scratch / "settings" / "@jupyterlab" / extension
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{plugin}.jupyterlab-settings").write_text(json.dumps(values))


def _wait_until_up(url: str, server: subprocess.Popen, log: Path) -> None:
    end = time.time() + 90
    while time.time() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.3)
    raise RuntimeError(f"JupyterLab did not come up:\n{log.read_text()[-2000:]}")
