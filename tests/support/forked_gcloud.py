"""gcloud in processes forked from one that has loaded its modules."""

from __future__ import annotations

import atexit
import functools
import os
import shlex
from contextlib import ExitStack
from pathlib import Path

from tests.support.forking_server import client_command, forking_server

SERVER = "tests.support.gcloud_server"
# It receives gcloud's program with options of Python, and runs what else gcloud has for a Python.
PROGRAM = """#!/bin/sh
case "$*" in */gcloud.py*) ;; *) exec "{python}" "$@" ;; esac
until [ "${{1##*/}}" = gcloud.py ]; do shift; done
shift
exec {client} "$@"
"""


@functools.cache
def forked_gcloud_python(gcloud: str) -> str:
    """A program for `CLOUDSDK_PYTHON`, which runs this gcloud until this process ends."""
    resources = ExitStack()
    atexit.register(resources.close)
    environment = {  # gcloud's script starts the server with the Python of its choice
        "CLOUDSDK_PYTHON_ARGS": f"-S -m {SERVER}",
        "PATH": os.environ["PATH"],
    }
    address = resources.enter_context(forking_server([gcloud], environment))
    folder = Path(address).parent
    program = folder / "python"
    client = shlex.join(client_command(address))
    python = (folder / "interpreter").read_text("utf-8")
    program.write_text(PROGRAM.format(python=python, client=client), "utf-8")
    program.chmod(0o755)
    return str(program)
