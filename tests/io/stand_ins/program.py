"""A stand-in for every program that a launch script calls: it binds the ports that the engine would, or fails as told.

Its name says which program it is; FAULT says how it fails, and BEGAN names a folder for a file of each start.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

NAME, WORDS, FAULT = os.path.basename(sys.argv[0]), sys.argv[1:], os.environ.get("FAULT", "")
OPTIONS = dict(zip(WORDS, [*WORDS[1:], ""], strict=True))


def _places():
    """List where this program listens: at the port of its own, and the first of several where they meet."""
    if "-p" in OPTIONS:
        yield OPTIONS["-H"], OPTIONS["-p"]
    if "--port" in OPTIONS and "--headless" not in OPTIONS:
        yield OPTIONS["--host"], OPTIONS["--port"]
    if OPTIONS.get("--node-rank") == "0" and "--master-addr" in OPTIONS:
        yield OPTIONS["--master-addr"], OPTIONS["--master-port"]
    if OPTIONS.get("--node-rank") == "0" and "--dist-init-addr" in OPTIONS:
        yield OPTIONS["--dist-init-addr"].split(":")


def _answer(server):
    while True:
        client, _ = server.accept()
        try:
            if client.recv(100).startswith(b"GET /health "):
                client.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        except OSError:
            pass
        client.close()


def _serve():
    if FAULT == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # torchrun's workers have sessions of their own
    subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    if FAULT == "fails":
        sys.exit(4)
    for place in filter(None, OPTIONS.get("--rpc", "").split(",")):
        socket.create_connection(
            place.split(":"), 5
        ).close()  # as llama-server, which gives up at once
    with open(f"{os.environ['BEGAN']}/{os.getpid()}", "w"):
        pass
    servers = [
        socket.create_server((host, int(port))) for host, port in _places() if FAULT != "hangs"
    ]
    for server in servers:
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
    time.sleep(0.7 if FAULT == "dies" else 60)
    sys.exit(5)


if NAME == "nvidia-smi":
    print(os.environ["GPUS"])
elif NAME == "mkdir":  # on a disk that is full
    os.makedirs(WORDS[-1])
    for log in ("0", "1", "2", "llama-server", "rpc-50052", "rpc-50053"):
        os.symlink("/dev/full", f"{WORDS[-1]}/{log}.log")
elif "--version" in WORDS or (WORDS[:1] == ["-c"] and "importlib" in WORDS[1]):
    have = os.environ["HAVE"]
    print(f"version: {have.split('.')[0]} (0a1b2c)" if NAME == "llama-server" else have)
else:
    _serve()
