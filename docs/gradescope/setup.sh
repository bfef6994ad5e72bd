#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the autograder: Python, and pipelab from the wheel beside it.
set -e
apt-get update
apt-get install -y python3.11-venv || apt-get install -y python3-venv
"$(command -v python3.11 || command -v python3)" -m venv /autograder/venv
wheel=$(ls /autograder/source/pipelab-*.whl)
/autograder/venv/bin/pip install "$wheel[lab,schedules]"
