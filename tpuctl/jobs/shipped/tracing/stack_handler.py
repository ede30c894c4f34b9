"""Lets tpuctl read the stacks of a job's Python processes, and collect profiles of them.

The supervisor copies this file to the attempt's folder `python/sitecustomize.py`, which is first on
the import path, so that every Python of the job imports it before the script. On SIGNAL, Python's
faulthandler writes the stacks of all threads to an anonymous file of the process, which
`stacks.py` reads; it does so from a signal handler in C, whatever the threads wait for. On
PROFILE_SIGNAL, once the main thread runs Python code, a thread collects a profile. Until then,
scripts do not notice: there is no thread, no output, and no file on disk.

If anything fails here, the job has no stacks. A sitecustomize that this one hides is imported
after it. Any Python 3 can import it; before 3.8, or without Linux, it does nothing.
"""

import os
import sys

# Real-time signals; those that programs use are the first and the last ones.
SIGNAL, PROFILE_SIGNAL = 60, 61
NAME = "tpuctl-stacks"
HERE = os.path.dirname(os.path.abspath(__file__))


def handle_signal() -> None:
    try:
        import faulthandler

        # Closed by execve, so that a program that replaces the process is not taken for it.
        file = os.memfd_create(f"{NAME}-{os.getpid()}")
        faulthandler.register(SIGNAL, file, all_threads=True)
        __import__("_signal").signal(
            PROFILE_SIGNAL, start_profile
        )  # `signal` takes a while to load
    except Exception:
        return


def start_profile(*_: object) -> None:
    import runpy
    import threading

    path = os.path.join(os.path.dirname(HERE), "trace_collector.py")
    run = {"run_name": "__main__"}
    threading.Thread(target=runpy.run_path, args=(path,), kwargs=run, daemon=True).start()


def import_next() -> None:
    """Import the sitecustomize that this one hides, if any."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    module = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", module)


if __name__ == "sitecustomize":
    handle_signal()
    import_next()
