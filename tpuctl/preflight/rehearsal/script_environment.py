"""The environment of a rehearsed script: a worker's variables, and no access to Google."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

# The only variables inherited from the shell, besides PROXIES and LC_*.
INHERITED = ("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
# For access to other hosts; the local cloud's gateway forwards to these.
PROXIES = (
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)
# Blocks the metadata server, in case this machine is a Google Cloud VM.
UNREACHABLE = "127.0.0.1:9"
NO_METADATA_SERVER = {
    "GCE_METADATA_HOST": UNREACHABLE,
    "GCE_METADATA_IP": UNREACHABLE,
    "GCE_METADATA_ROOT": UNREACHABLE,
    "NO_GCE_CHECK": "true",
    "TPU_SKIP_MDS_QUERY": "1",
}
# Avoids log messages of TensorFlow that appear only on CPUs and GPUs.
CPU_SETTINGS = {"TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
# The devices of PyTorch/XLA and JAX, whatever the job sets for a TPU.
NO_TPU = {"PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu"}


def shell_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The shell's variables that the script inherits: no credentials, no Python settings."""
    return {
        name: value
        for name, value in environment.items()
        if name in INHERITED or name in PROXIES or name.startswith("LC_")
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
    """All variables of the script. `cloud` points to the local cloud, `job` is a worker's settings.

    The job's variables override the shell's, as on a worker, but not those that isolate the
    script from Google.
    """
    variables = {
        **shell,
        "HOME": str(home),
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        **CPU_SETTINGS,
        **job,
        **NO_METADATA_SERVER,
        **NO_TPU,
    }
    for name, value in cloud.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    variables["TPUCTL_CLOUD"] = "google"  # scripts do not use the TPU on the local cloud
    variables["PYTHONDONTWRITEBYTECODE"] = "1"  # leaves the user's folder unchanged
    variables["TPUCTL_REHEARSAL"] = str(settings)
    variables["PYTHONPATH"] = _join_paths([str(shim), *modules], job.get("PYTHONPATH", ""))
    variables["PATH"] = _join_paths(programs, variables.get("PATH", os.defpath))
    return variables


def _join_paths(folders: Sequence[str], existing: str) -> str:
    return os.pathsep.join([*folders, *([existing] if existing else [])])
