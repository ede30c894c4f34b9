"""Commands of gcloud in processes forked from one that has loaded its modules.

`forked_gcloud.py` starts this program. Only the time to load modules is saved: half a second to two
of each command.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from tests.support.forking_server import serve

MAIN = "googlecloudsdk.gcloud_main"
CONFIGURATIONS = "googlecloudsdk.core.configurations.named_configs"
SSH = "googlecloudsdk.command_lib.util.ssh.ssh"


def main(program: str, address: str) -> NoReturn:
    """Run the commands of clients of this Unix socket, until stdin is closed.

    `program` is gcloud's `lib/gcloud.py`. Modules that a command needed are loaded here, too, for
    those after it. The path of Python is in the file `interpreter` beside the socket.
    """
    library, folder = Path(program).parent, Path(address).parent
    (folder / "interpreter").write_text(sys.executable, "utf-8")
    os.environ["HOME"] = str(folder)
    sys.path[:0] = [str(library / "third_party"), str(library)]
    _load([MAIN])
    needed = folder / "modules"
    needed.touch()
    with needed.open(encoding="utf-8") as lines:
        sys.argv = [program, *serve(address, kill_group=True, refresh=lambda: _load(lines))]
    # What modules read while they were loaded: the configuration, and the user's home.
    sys.modules[CONFIGURATIONS].ActivePropertiesFile.Invalidate()
    if SSH in sys.modules:
        importlib.reload(sys.modules[SSH])
    known = set(sys.modules)
    try:
        sys.exit(sys.modules[MAIN].main())
    finally:
        names = (name for name in sys.modules if name not in known and name[:2] != "__")
        # Opened here: a file that was open at the fork would move the server's position, too.
        with needed.open("a", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in names))


def _load(lines: Iterable[str]) -> None:
    for line in lines:
        with contextlib.suppress(Exception):  # some are loaded in a way of their own
            importlib.import_module(line.strip())


if __name__ == "__main__":
    main(*sys.argv[-2:])
