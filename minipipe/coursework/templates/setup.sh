#!/usr/bin/env bash
# Gradescope runs this once, when it builds the image: minipipe, from the wheel in this archive, with its dependencies
# from the package index. After this nothing needs the network.
set -eu
home=${AUTOGRADER:-/autograder}
# Ubuntu 22.04 has Python 3.10 as python3, and 3.11 beside it; minipipe needs 3.11.
python=python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || python=python3.11
if ! "$python" -c 'import ensurepip, venv'; then
    apt-get update
    apt-get install -y --no-install-recommends "$python" "$python-venv"
fi
"$python" -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet "$home"/source/minipipe_mpi-*.whl
# The solutions: a user without rights, as which students' code runs, reads none of them, whatever else is in force.
chmod -R go= "$home/source"
