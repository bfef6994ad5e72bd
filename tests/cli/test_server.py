"""The server that `pipelab` starts: for this machine alone, and with a token."""

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
def _served(tmp_path):
    """`pipelab lab` as a reader starts it; its process, its port, and the token that it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = ("CONFIG", "RUNTIME", "DATA")
    folders = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in names}
    command = [sys.executable, "-m", "pipelab", "lab", "--no-browser"]
    command += [f"--port={port}", "--allow-root"]
    options = {"cwd": tmp_path, "env": os.environ | folders, "start_new_session": True}
    log = tmp_path / "lab.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, **options)
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


def _status(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_the_server_is_for_this_machine_and_asks_for_its_token(tmp_path):
    with _served(tmp_path) as (process, port, token):
        addresses = set()
        while not addresses:  # the system's table can miss a socket while others open and close
            listening = (
                s for s in process.net_connections("inet") if s.status == psutil.CONN_LISTEN
            )
            addresses = {socket.laddr.ip for socket in listening if socket.laddr.port == port}
        assert "127.0.0.1" in addresses <= {"127.0.0.1", "::1"}
        address = f"http://127.0.0.1:{port}/api/contents"
        assert _status(address) == 403
        assert _status(f"{address}?token={token[::-1]}") == 403
        assert len(token) >= 32
        assert _status(f"{address}?token={token}") == 200
