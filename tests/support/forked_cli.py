"""Runs a command line in a process forked from one with the commands' modules preloaded.

Only the time to load them is saved; `tests/flows` also has tests of the real program.
of the real program, too.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from tpuctl.__main__ import main
from tpuctl.cloud.clients import RPC
from tpuctl.google_imports import compute_service

__all__ = ["run_cli"]

for _package, *_ in RPC.values():
    importlib.import_module(_package)
for _name in (
    *("google.cloud.storage", "tpuctl.cli.main", "tpuctl.cli.stack", "tpuctl.cli.run"),
    *("tpuctl.api", "tpuctl.flows.up", "tpuctl.flows.inventory", "tpuctl.view"),
):
    importlib.import_module(_name)
for _name in ("networks", "firewalls", "instances", "disks", "images", "addresses", "subnetworks"):
    compute_service(_name)
gc.freeze()


def run_cli(
    arguments: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    out: str,
    errors_path: str,
) -> None:
    """Run the command line there, with stdout and stderr in these files. Never returns."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, out), (2, errors_path)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["tpuctl", *arguments]
    main()
