"""`python -m tpuctl`, and the `tpuctl` command."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

__all__ = ["main"]

INTERRUPTED = 130
COLLECT_AFTER = 5.0  # seconds


def main() -> NoReturn:
    _postpone_garbage_collection()
    # To look for plugins, pydantic reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _prepare_streams()
    code = 1  # of an uncaught exception
    atexit.register(lambda: _exit(code))  # first, so that it runs after all other handlers
    try:
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:  # before signal handlers were installed
        code = INTERRUPTED
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    code = _complete_for_shell()
    if code is None:
        code = _answer_without_parser(arguments)
    if code is None:
        from tpuctl.cli.main import run

        code = run(arguments)
    return code


def _postpone_garbage_collection() -> None:
    """Do not look for garbage during the first seconds, nor often later.

    Imports allocate much and free little: this saves a tenth of the processor time of `status`.
    """
    gc.set_threshold(20_000, 20, 20)
    gc.disable()
    timer = threading.Timer(COLLECT_AFTER, gc.enable)
    timer.daemon = True
    timer.start()


def _exit(code: int) -> NoReturn:
    """Flush the streams and end the process.

    Python would spend 0.2 s tearing down modules. Threads still inside a call to the cloud, for
    example after a timeout, could crash it meanwhile: Python ends them in gRPC's code.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _complete_for_shell() -> int | None:
    """The exit code if a shell asked for completions (see `cli.tab_completion`), else None."""
    if "_TPUCTL_COMPLETE" not in os.environ:
        return None
    from tpuctl.cli.tab_completion import main

    return main()


def _answer_without_parser(arguments: list[str]) -> int | None:
    """Print the version or the list of commands without loading the parser; None for anything
    else."""
    if os.environ.get("TPUCTL_JSON"):
        return None
    if arguments == ["--version"]:
        from tpuctl.version import __version__

        text = f"tpuctl {__version__}"
    elif arguments in ([], ["--help"], ["-h"], ["help"]):
        from tpuctl.cli.help.help_pages import root_page

        text = root_page()
    else:
        return None
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _prepare_streams() -> None:
    """Replace closed streams by the null device; escape characters that a terminal cannot
    encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            devnull = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
            setattr(sys, name, devnull)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
