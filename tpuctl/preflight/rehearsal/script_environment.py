"""What a rehearsed script finds around it: a worker's variables, and none that lead to Google."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["script_variables", "shell_variables"]

# Of the shell around: language, time and place for temporary files. All else is the user's own.
KEPT = ("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
# How other hosts are reached; the local cloud's gateway passes these on.
ROUTES = (
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)
# No metadata server of the machine that this is, should it be one of Google's.
UNREACHABLE = "127.0.0.1:9"
CLOSED = {
    "GCE_METADATA_HOST": UNREACHABLE,
    "GCE_METADATA_IP": UNREACHABLE,
    "GCE_METADATA_ROOT": UNREACHABLE,
    "NO_GCE_CHECK": "true",
    "TPU_SKIP_MDS_QUERY": "1",
}
# TensorFlow's own words stay, as on a worker, but for a CPU's that no TPU has.
QUIET = {"TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}


def shell_variables(around: Mapping[str, str]) -> dict[str, str]:
    """What of the shell around may be seen by the script: no credentials, and nothing of Python."""
    return {
        name: value
        for name, value in around.items()
        if name in KEPT or name in ROUTES or name.startswith("LC_")
    }


def script_variables(
    shell: Mapping[str, str],
    cloud: Mapping[str, str | None],
    job: Mapping[str, str],
    *,
    home: Path,
    shim: Path,
    settings: Path,
    programs: Sequence[str] = (),
    modules: Sequence[str] = (),
) -> dict[str, str]:
    """All variables of the script. `cloud` leads to the local cloud, `job` is what a worker sets.

    The job's own come after those of the shell, as on a worker, and before what keeps the script
    here: nothing in a stack file leads it to Google.
    """
    variables = {
        **shell,
        "HOME": str(home),
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        **QUIET,
        **job,
        **CLOSED,
    }
    for name, value in cloud.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    variables["TPUCTL_CLOUD"] = "google"  # scripts leave the TPU alone on the local cloud
    variables["PYTHONDONTWRITEBYTECODE"] = "1"  # the folder is the user's
    variables["TPUCTL_REHEARSAL"] = str(settings)
    variables["PYTHONPATH"] = _search([str(shim), *modules], job.get("PYTHONPATH", ""))
    variables["PATH"] = _search(programs, variables.get("PATH", os.defpath))
    return variables


def _search(places: Sequence[str], before: str) -> str:
    return os.pathsep.join([*places, *([before] if before else [])])
