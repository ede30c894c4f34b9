"""Collects a profile of a running job on one worker, and uploads it to the bucket.

This file is sent to workers as it is and runs there as
`python3 -S -I profiler.py FOLDER SECONDS RUN`: standard library only, Python 3.8 and later. It
asks the job's processes that use a framework to trace themselves, which `trace_collector.py` does,
and names the files as TensorBoard expects them: OUTPUT/profile/plugins/profile/RUN/HOST.*.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tpuctl.jobs.shipped.machine.folder import Folder
    from tpuctl.jobs.shipped.machine.processes import descendants
    from tpuctl.jobs.shipped.machine.storage import Bucket
    from tpuctl.jobs.shipped.tracing.stack_handler import PROFILE_SIGNAL
    from tpuctl.jobs.shipped.tracing.stacks import stacks_file
else:
    from folder import Folder
    from processes import descendants
    from stack_handler import PROFILE_SIGNAL
    from stacks import stacks_file
    from storage import Bucket

# Shared libraries, or folders of them, of frameworks that can be traced.
LIBRARIES = (b"/jaxlib/", b"/_XLAC", b"/tensorflow/")
WRITE_SECONDS = 120.0  # in which a process stops tracing and writes its profile


class Failure(Exception):
    """There is no profile, for the reason in its text."""


def collect(folder: Folder, seconds: float) -> dict[int, dict[str, Any]]:
    """What the job's processes report; their files are in the folder `profile`."""
    job_parent = folder.job_parent()
    if job_parent is None or not folder.is_locked("job.lock"):
        raise Failure("the script has not started yet, or has ended")
    processes = [pid for pid in descendants(job_parent) if can_trace(pid)]
    if not processes:
        raise Failure("no Python process of the job uses JAX, PyTorch/XLA, or TensorFlow")
    output = folder.file("profile")
    shutil.rmtree(output, ignore_errors=True)
    os.makedirs(output)
    Folder(output).write("request.json", {"seconds": seconds})
    for pid in processes:
        os.kill(pid, PROFILE_SIGNAL)
    deadline = time.monotonic() + seconds + WRITE_SECONDS
    results: dict[int, dict[str, Any]] = {}
    while len(results) < len(processes) and time.monotonic() < deadline:
        time.sleep(0.1)
        for pid in processes:
            result = folder.read(f"profile/{pid}.json")
            if result is not None:
                results[pid] = result
        if not folder.is_locked("job.lock"):
            break
    os.remove(os.path.join(output, "request.json"))
    for pid in processes:
        error = "it ended, or its main thread did not return to Python"
        results.setdefault(pid, {"framework": "", "error": error})
    return results


def can_trace(pid: int) -> bool:
    """Whether a process has the handler, not from its parent, and uses a framework."""
    if stacks_file(pid, PROFILE_SIGNAL, of_itself=True) is None:
        return False
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
        return any(library in line for line in maps for library in LIBRARIES)
    return False


def upload(folder: Folder, spec: dict[str, Any], pids: list[int], run: str) -> list[str]:
    """Upload the profiles of these processes; return the objects' names."""
    bucket = Bucket(spec["bucket"])
    job = spec["prefix"].partition("/attempts/")[0]
    names = []
    for pid in pids:
        process = f"-{pid}" if len(pids) > 1 else ""
        for path in files(folder.file(f"profile/{pid}")):
            kind = os.path.basename(path).partition(".")[2] or "pb"
            if not kind.endswith(("xplane.pb", "trace.json.gz")):
                continue
            kind = "xplane.pb" if kind.endswith("xplane.pb") else "trace.json.gz"
            host = f"worker-{spec['worker']}{process}"
            name = f"{job}/output/profile/plugins/profile/{run}/{host}.{kind}"
            with open(path, "rb") as file:
                bucket.put(name, file.read())
            names.append(name)
    return names


def files(folder: str) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            yield os.path.join(parent, name)


def main(arguments: list[str]) -> int:
    path, seconds, run = arguments
    folder = Folder(path)
    spec = folder.read("spec.json")
    if spec is None or folder.lock("profiler.lock") is None:
        print("another profile is being collected" if spec else "no such job", file=sys.stderr)
        return 1
    try:
        results = collect(folder, float(seconds))
        done = [pid for pid, result in results.items() if not result["error"]]
        if not done:
            raise Failure(next(iter(results.values()))["error"])
        names = upload(folder, spec, done, run)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder.file("profile"), ignore_errors=True)
    print(json.dumps({"framework": results[done[0]]["framework"], "objects": names}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
