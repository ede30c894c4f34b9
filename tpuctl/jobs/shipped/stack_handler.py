"""Lets the supervisor read the stacks of a job's Python processes, also of those that hang.

The supervisor copies this file to the attempt's folder `python/sitecustomize.py`, which is first on
the import path, so that every Python of the job imports it before the script. On SIGNAL, Python's
faulthandler writes the stacks of all threads to an anonymous file of the process, which
`stacks.py` reads; it does so from a signal handler in C, whatever the threads wait for. Scripts do
not notice: there is no thread, no output, and no file on disk.

If anything fails here, the job has no stacks. A sitecustomize that this one hides is imported
after it. Any Python 3 can import it; before 3.8, or without Linux, it does nothing.
"""

import os
import sys

__all__ = ["NAME", "SIGNAL"]

SIGNAL = 60  # a real-time signal; those that programs use are the first and the last ones
NAME = "tpuctl-stacks"
HERE = os.path.dirname(os.path.abspath(__file__))


def handle_signal() -> None:
    try:
        import faulthandler

        # Closed by execve, so that a program that replaces the process is not taken for it.
        faulthandler.register(SIGNAL, os.memfd_create(NAME), all_threads=True)
    except Exception:
        return


def import_next() -> None:
    """Import the sitecustomize that this one hides, if any."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    this = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


if __name__ == "sitecustomize":
    handle_signal()
    import_next()
