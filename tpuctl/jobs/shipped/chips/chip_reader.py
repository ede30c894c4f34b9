"""Prints what the chips of this machine do now, as a line of JSON.

Like `chip_metrics.py`, which starts it, this file is sent to workers as it is; it runs under the
job's Python, whose libtpu it needs: Python 3.8 and later. libtpu asks the TPU runtime of the
process that trains, at PORT; this process neither opens the chips nor initializes a backend.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

PORT = 8431  # that libtpu asks; the runtime's first in TPU_RUNTIME_METRICS_PORTS on TPU VMs
SECONDS = 30  # after which SIGALRM ends this process; libtpu waits up to 20 s for an answer
# The fields of a sample, and libtpu's names of metrics, each a list of texts such as "97.50".
METRICS = (
    ("duty_cycle_percent", "duty_cycle_pct", float),
    ("hbm_used_bytes", "hbm_capacity_usage", int),
    ("hbm_total_bytes", "hbm_capacity_total", int),
)


def read_metrics() -> dict[str, Any]:
    """The metrics of each chip or core; or `absence`, the reason why there are none."""
    try:
        monitoring = importlib.import_module("libtpu.sdk").tpumonitoring
    except ImportError as error:
        if error.name == "libtpu":
            return {"absence": "libtpu is not installed in the job's environment"}
        return {"absence": f"the libtpu of the job's environment cannot read them: {error}"}
    metrics: dict[str, Any] = {}
    for field, name, kind in METRICS:
        metrics[field] = [kind(value) for value in monitoring.get_metric(name).data()]
        if not metrics[field]:
            return {"absence": explain_absence()}
    return metrics


def explain_absence() -> str:
    """Why libtpu has no values, which it reports like any other answer."""
    with contextlib.suppress(OSError), socket.create_connection(("localhost", PORT), timeout=2):
        return "the TPU runtime has no values yet"
    return f"no TPU runtime answers on port {PORT}: the script does not use the TPU, or not yet"


def main() -> None:
    signal.alarm(SECONDS)
    os.nice(19)
    try:
        metrics = read_metrics()
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        metrics = {"absence": f"libtpu failed: {message[:200]}"}
    print(json.dumps(metrics), flush=True)
    os._exit(0)  # without libtpu's own cleanup


if __name__ == "__main__":
    del sys.path[0]  # this folder: other programs must not replace modules of the job
    main()
