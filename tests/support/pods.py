"""The containers that Kubernetes would start for a JobSet: commands and environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

LABEL = re.compile(r"metadata\.labels\['(.*)'\]")


@dataclass(frozen=True)
class Container:
    """What the kubelet starts."""

    argv: list[str]
    environment: dict[str, str]


def containers_of(
    manifest: str, *, restarts: int = 0, secrets: Mapping[str, Mapping[str, str]] | None = None
) -> list[Container]:
    """The container of each pod, by job and completion index."""
    jobset = yaml.safe_load(manifest)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    return [
        _container(container, job_index, restarts, index, secrets or {})
        for job_index in range(replicated["replicas"])
        for index in range(job["completions"])
    ]


def _container(
    container: dict[str, Any],
    job_index: int,
    restarts: int,
    index: int,
    secrets: Mapping[str, Mapping[str, str]],
) -> Container:
    labels = {"job-index": job_index, "restart-attempt": restarts}
    environment = {"JOB_COMPLETION_INDEX": str(index)}  # kubernetes.io/docs: Indexed Job
    for variable in container["env"]:
        if "value" in variable:
            value = expand(variable["value"], environment)
        elif "secretKeyRef" in variable["valueFrom"]:
            key = variable["valueFrom"]["secretKeyRef"]
            value = secrets[key["name"]][key["key"]]
        else:
            match = LABEL.fullmatch(variable["valueFrom"]["fieldRef"]["fieldPath"])
            assert match is not None
            # JobSet's labels of pods: api/jobset/v1alpha2/jobset_types.go, pkg/constants.
            value = str(labels[match[1].removeprefix("jobset.sigs.k8s.io/")])
        environment[variable["name"]] = value
    words = [*container["command"], *container["args"]]
    return Container([expand(word, environment) for word in words], environment)


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace references as the kubelet does: $$ is $, $(NAME) is the variable, if there is one.

    Source: kubernetes/kubernetes, third_party/forked/golang/expansion/expand.go.
    """

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)
