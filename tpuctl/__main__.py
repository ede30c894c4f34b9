"""`python -m tpuctl`, and the `tpuctl` command."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
from pathlib import Path
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    gc.set_threshold(20_000, 20, 20)  # importing makes much and drops little: 5% of a `status`
    _ready_streams()
    try:
        code = _started_by_shell()
        if code is None:
            code = _answered_at_once(sys.argv[1:])
        if code is None:
            from tpuctl.cli.main import run

            code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before there was anything to interrupt
        code = 130
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End at once, with what was said written and what was left for the end done.

    The interpreter would first take apart all that was imported, half a second of work. Threads
    that are in a call to the cloud then, as after a timeout, can crash it meanwhile: Python ends
    them inside gRPC's code.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _started_by_shell() -> int | None:
    """The exit code, where a shell asks what may follow what was typed: see `cli.completion`."""
    if "_TPUCTL_COMPLETE" not in os.environ:
        return None
    from tpuctl.cli.completion import tab

    return tab.main()


def _answered_at_once(arguments: list[str]) -> int | None:
    """The exit code of what needs no parser: the version, and the list of commands."""
    if os.environ.get("TPUCTL_JSON"):
        return None
    if arguments == ["--version"]:
        from tpuctl.version import __version__

        text = f"tpuctl {__version__}"
    elif arguments in ([], ["--help"], ["-h"], ["help"]):
        from tpuctl.cli.help_pages import root_page

        text = root_page()
    else:
        return None
    try:
        print(text, flush=True)
    except BrokenPipeError:  # its reader wanted no more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


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
