"""Runs scripts of another Python environment in forks of a process that has loaded modules.

    command = [python, "-m", "tests.support.forked_scripts", "tensorflow"]
    with forking_server(command, environment) as address:
        subprocess.run([*client_command(address), "train.py"], env=environment, check=True)

Each script runs as `__main__` in a process of its own. The modules must not have started threads
that the scripts need. Scripts find modules in their own folder, and in those of the PYTHONPATH of
the server.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

from tests.support.forking_server import serve

if __name__ == "__main__":
    *modules, address = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    sys.argv = serve(address)
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
