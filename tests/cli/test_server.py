"""The server that `pipelab` starts: this machine alone, a token, and another address only when asked for."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import psutil
import pytest


@contextmanager
def served(tmp_path, *arguments):
    """`pipelab lab` as a reader starts it; its process, and the address with the token that it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = {
        f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "RUNTIME", "DATA")
    }
    command = [
        sys.executable, "-m", "pipelab.cli.command_line",
        "lab", "--no-browser", f"--port={port}", "--allow-root", *arguments,
    ]  # fmt: skip
    log = tmp_path / "lab.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | folders,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        end, found = time.monotonic() + 90, None
        while found is None and time.monotonic() < end and server.poll() is None:
            time.sleep(0.3)
            found = re.search(rf"http://([\w.]+):{port}/\S*\?token=(\w+)", log.read_text())
        assert found, log.read_text()[-2000:]
        yield psutil.Process(server.pid), port, found.group(2)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)


def _listens_at(process, port):
    """The addresses; asked again for a while, as the system's table can miss a socket while others open and close."""
    for _ in range(50):
        open_ = [
            c
            for c in process.net_connections("inet")
            if c.status == psutil.CONN_LISTEN and c.laddr.port == port
        ]
        if open_:
            break
        time.sleep(0.1)
    return {c.laddr.ip for c in open_}


def _status(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_the_server_is_for_this_machine_and_asks_for_its_token(tmp_path):
    with served(tmp_path) as (process, port, token):
        assert "127.0.0.1" in _listens_at(process, port) <= {"127.0.0.1", "::1"}
        address = f"http://127.0.0.1:{port}/api/contents"
        assert _status(address) == 403
        assert _status(f"{address}?token={token[::-1]}") == 403
        assert len(token) >= 32
        assert _status(f"{address}?token={token}") == 200


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has further loopback addresses without being asked"
)
def test_another_address_is_taken_when_asked_for(tmp_path):
    with served(tmp_path, "--ip=127.0.0.2") as (process, port, token):
        assert _listens_at(process, port) == {"127.0.0.2"}
        assert _status(f"http://127.0.0.2:{port}/api/contents") == 403
        assert _status(f"http://127.0.0.2:{port}/api/contents?token={token}") == 200
