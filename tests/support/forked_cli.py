"""A `tpuctl` program whose processes are forked from one that has loaded the commands' modules.

It saves the second that a command takes to start. `tests/flows` also has tests of the real program.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import shlex
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from tests.support.forking_server import client_command, forking_server, serve
from tpuctl.__main__ import main

COMPUTE_SERVICES = (
    *("addresses", "disks", "firewalls", "images", "instances", "networks", "regions"),
    "subnetworks",
)
# Of one command, with a library that takes a second to load.
MCP_SERVER = "tpuctl.cli.agents.mcp_server"
LIBRARIES = (
    *("_strptime", "concurrent.futures.thread", "encodings.ascii", "filelock", "google_crc32c"),
    *("google.cloud.storage", "google.oauth2.credentials", "google.oauth2.reauth", "pathspec"),
    *("grpc._interceptor", "pydantic.dataclasses", "re2", "rich._emoji_codes", "rich.table"),
)


@cache
def forked_tpuctl() -> str:
    """The path of the program, which works until this process ends."""
    resources = ExitStack()
    atexit.register(resources.close)
    address = resources.enter_context(forking_server([sys.executable, "-m", __name__]))
    program = Path(address).with_name("tpuctl")
    program.write_text(f'#!/bin/sh\nexec {shlex.join(client_command(address))} "$@"\n', "utf-8")
    program.chmod(0o755)
    return str(program)


def run_tpuctl(
    *arguments: str, folder: Path, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the program in that folder without input, with more environment variables as keywords.

    The test fails if it prints a traceback.
    """
    done = subprocess.run(
        [forked_tpuctl(), *arguments],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _preload() -> None:
    """Load the modules that any command loads."""
    from tpuctl.cloud.clients import RPC
    from tpuctl.google_imports import client_module, compute_service

    for package in ("cli", "flows", "view", "local_cloud", "preflight.rules"):
        module = importlib.import_module(f"tpuctl.{package}")
        for entry in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            if entry.name != MCP_SERVER:
                importlib.import_module(entry.name)
    for service in COMPUTE_SERVICES:
        compute_service(service)
    for package, service, _ in RPC.values():
        client_module(f"google.cloud.{package}", service)
    for name in LIBRARIES:
        importlib.import_module(name)


if __name__ == "__main__":
    _preload()
    sys.argv = ["tpuctl", *serve(sys.argv[1])]
    # As at the start of Python: buffered, unless a terminal.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    main()
