"""`python -m tpuctl`, and the `tpuctl` command."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    _ready_streams()
    try:
        code = _started_by_shell()
        if code is None:
            from tpuctl.cli.main import run

            code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before there was anything to interrupt
        code = 130
    sys.exit(code)


def _started_by_shell() -> int | None:
    """The exit code, where a shell asks what may follow what was typed."""
    if "_TPUCTL_COMPLETE" not in os.environ:
        return None
    from tpuctl.cli import tab

    return tab.main()


def _ready_streams() -> None:
    """Closed ones lead nowhere; what a terminal cannot show is shown by its number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
            setattr(sys, name, nowhere)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
