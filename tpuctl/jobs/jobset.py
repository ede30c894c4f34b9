"""The manifest of a JobSet: a job of a stack for Google Kubernetes Engine.

Kubernetes does what tpuctl does for a TPU VM: JobSet starts and restarts all workers together,
Kueue waits for capacity, node selectors choose the TPU. In each pod, `shipped/pod.py` prepares and
runs the job like a supervisor.

Sources: jobset.sigs.k8s.io (v1alpha2), kueue.sigs.k8s.io/docs/tasks/run/jobsets,
docs.cloud.google.com/kubernetes-engine/docs (concepts/plan-tpus, how-to/tpus,
how-to/tpu-multislice; read 2026-11).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from tpuctl.assets import program
from tpuctl.catalog import GKE_GENERATIONS, gke_accelerator
from tpuctl.errors import Usage
from tpuctl.jobs.launch import GRACE_SECONDS, SHIPPED, build_archive, cache_spec
from tpuctl.model.jobs.attempt import Retries
from tpuctl.model.jobs.job import EXIT_RETRY, JobRecord
from tpuctl.model.stack.proxy import network_settings
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.duration import seconds_of
from tpuctl.model.text.names import BUNDLES, STACK_LABEL, TOOLS

DEFAULT_IMAGE = "python:3.12"
CONTAINER, REPLICATED_JOB = "job", "slice"
# Kubernetes names pods NAME-slice-INDEX-INDEX-SUFFIX, with up to 63 characters (JobSet's webhook).
NAME = re.compile(r"[a-z]([-a-z0-9]{0,39}[a-z0-9])?")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_RULE = "up to 63 lower-case letters, digits and hyphens"
PORTS = (8471, 8080)  # of libtpu: within a slice, and between slices
GKE = "cloud.google.com"


@dataclass(frozen=True)
class JobSetSettings:
    """What a stack file does not say."""

    queue: str = "tpu"  # a LocalQueue of Kueue; empty: the JobSet does not wait in one
    image: str = DEFAULT_IMAGE
    service_account: str = "tpuctl"  # of Kubernetes


def require_names(name: str, settings: JobSetSettings) -> None:
    """Raise Usage for names that JobSet or Kubernetes would reject."""
    names = {
        "--name": (name, NAME, "up to 41 lower-case letters, digits and hyphens, a letter first"),
        "--queue": (settings.queue or "none", LABEL, LABEL_RULE),
        "--service-account": (settings.service_account, LABEL, LABEL_RULE),
    }
    for option, (value, pattern, rule) in names.items():
        if not pattern.fullmatch(value):
            raise Usage(
                "Invalid name", f"{option} cannot be {value!r}", hint=f"Use {rule}.", where=option
            )


def require_exportable(stack: Stack) -> None:
    """Raise Usage if GKE cannot run the stack's jobs as they are."""
    accelerator = stack.accelerator
    if stack.is_node:
        raise Usage(
            "Not available on GKE",
            "tpu.kind: node is a TPU without a shell, which GKE does not have",
            hint="Export a job of a TPU VM:\n    tpu: {kind: vm}",
            where="tpu.kind",
        )
    if gke_accelerator(accelerator) is None:
        raise Usage(
            "Not available on GKE",
            f"GKE does not sell TPU {accelerator.generation}, the generation of {accelerator.name}",
            hint=f"Choose a type of {', '.join(GKE_GENERATIONS)}:\n    tpuctl types",
            where="tpu.type",
        )
    if len(stack.nodes) > stack.slices:
        raise Usage(
            "Not available on GKE",
            f"{len(stack.nodes)} independent nodes for one job: on GKE they are slices of a "
            "multislice job",
            hint="Ask for slices instead:\n    tpu: {slices: N}",
            where="tpu.queue.nodes",
        )
    if stack.slices > 1 and (accelerator.workers == 1 or accelerator.generation == "v3"):
        raise Usage(
            "Not available on GKE",
            f"several slices of {accelerator.name}: GKE runs multislice jobs only on slices with "
            "several hosts, of v4 and later",
            hint="Choose a larger type, or one slice:\n    tpu: {slices: 1}",
            where="tpu.slices",
        )


def require_all_workers(workers: tuple[int, ...], count: int) -> None:
    """Raise Usage if the job runs only on some workers: in a JobSet all hosts run it."""
    if len(workers) < count:
        raise Usage(
            "Job does not run on all workers",
            f"it runs on {len(workers)} of {count} workers, and a JobSet on all hosts of its "
            "slices; TensorFlow drives a slice from worker 0, through a server that only images of "
            "TPU VMs have",
            hint="If the script can run on each worker, set\n    job: {workers: all}",
            where="job.workers",
        )


def programs_archive() -> bytes:
    """The shipped programs as an archive. Equal programs have equal archives."""
    return gzip.compress(build_archive((*SHIPPED, "pod.py"), {}), mtime=0)


def programs_name(archive: bytes) -> str:
    """The archive's object name, by its content."""
    return f"{BUNDLES}/programs-{hashlib.sha256(archive).hexdigest()}.tar.gz"


def secret_name(stack: Stack) -> str:
    """The Secret of Kubernetes with the values of the job's secrets."""
    return f"{stack.name}-secrets"


def build_manifest(
    stack: Stack, record: JobRecord, settings: JobSetSettings, programs: str, comment: str
) -> str:
    """The manifest as YAML, after a comment; the JobSet's name is the job's id.

    `programs` is the name of `programs_archive` in the bucket.
    """
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": record.id, **_metadata(stack, settings)},
        "spec": {
            "failurePolicy": _failure_policy(record.retries),
            "replicatedJobs": [
                {
                    "name": REPLICATED_JOB,
                    "replicas": record.slices,
                    "template": {"spec": _job(stack, record, settings, programs)},
                }
            ],
        },
    }
    text = yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=100)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + text


def _metadata(stack: Stack, settings: JobSetSettings) -> dict[str, Any]:
    labels = {STACK_LABEL: stack.name}
    if settings.queue:
        labels["kueue.x-k8s.io/queue-name"] = settings.queue
    annotations = {}
    if stack.accelerator.workers > 1:  # one node pool is one slice
        key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
        annotations[key] = f"{GKE}/gke-nodepool"
    queue = stack.file.tpu.queue
    if stack.file.tpu.capacity == "flex-start" and queue is not None and queue.run_for:
        seconds = f"{seconds_of(queue.run_for):.0f}"
        annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] = Quoted(seconds)
    return {"labels": labels, **({"annotations": annotations} if annotations else {})}


def _failure_policy(retries: Retries) -> dict[str, Any]:
    """JobSet has one counter: for all causes that tpuctl counts separately."""
    return {
        "maxRestarts": retries.total,
        "rules": [
            {
                "name": "failure",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
            }
        ],
    }


def _job(
    stack: Stack, record: JobRecord, settings: JobSetSettings, programs: str
) -> dict[str, Any]:
    hosts, max_hours = stack.accelerator.workers, record.max_hours
    return {
        "completionMode": "Indexed",
        "parallelism": hosts,
        "completions": hosts,
        "backoffLimit": 0,  # all workers are restarted together, or none
        **({"activeDeadlineSeconds": int(max_hours * 3600)} if max_hours is not None else {}),
        **_pod_failure_policy(record.retries),
        "template": {"spec": _pod(stack, record, settings, programs)},
    }


def _pod_failure_policy(retries: Retries) -> dict[str, Any]:
    """Which exits end the JobSet; all others are counted, and restart it."""
    if retries.failure:
        return {}
    disruption = {"type": "DisruptionTarget", "status": Quoted("True")}
    exit_codes = {"containerName": CONTAINER, "operator": "NotIn", "values": [EXIT_RETRY]}
    return {
        "podFailurePolicy": {
            "rules": [
                {"action": "Count", "onPodConditions": [disruption]},
                {"action": "FailJob", "onExitCodes": exit_codes},
            ]
        }
    }


def _pod(
    stack: Stack, record: JobRecord, settings: JobSetSettings, programs: str
) -> dict[str, Any]:
    argv = ["python" if word == "{python}" else word for word in record.argv[:1]]
    chips = stack.accelerator.chips // stack.accelerator.workers
    tpu = {"google.com/tpu": chips}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": settings.service_account,
        "terminationGracePeriodSeconds": int(GRACE_SECONDS),
        "nodeSelector": _node_selector(stack),
        **_tolerations(stack),
        "containers": [
            {
                "name": CONTAINER,
                "image": settings.image,
                "command": ["python3", "-S", "-I", "-c", _literal(program("pod_start.py"))],
                "args": [Quoted(_literal(word)) for word in (*argv, *record.argv[1:])],
                "env": _environment(stack, record, programs),
                "ports": [{"containerPort": port} for port in PORTS],
                "resources": {"requests": tpu, "limits": dict(tpu)},
                "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
            }
        ],
        # On a TPU VM, half of the memory; in a container 64 MB, too little for data loaders.
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }


def _node_selector(stack: Stack) -> dict[str, str]:
    tpu = stack.file.tpu
    selector = {
        f"{GKE}/gke-tpu-accelerator": str(gke_accelerator(stack.accelerator)),
        f"{GKE}/gke-tpu-topology": tpu.topology or stack.accelerator.topology,
    }
    if stack.is_spot:
        selector[f"{GKE}/gke-spot"] = Quoted("true")
    if tpu.capacity == "flex-start":
        selector[f"{GKE}/gke-flex-start"] = Quoted("true")
    reservation = tpu.reservation or (tpu.queue.reservation if tpu.queue is not None else None)
    if reservation:
        *_, project, _, name = ["", "", "", *reservation.split("/")][-4:]
        selector[f"{GKE}/reservation-name"] = name
        if project:
            selector[f"{GKE}/reservation-project"] = project
    return selector


def _tolerations(stack: Stack) -> dict[str, Any]:
    """Of the taint that GKE suggests for spot node pools; it adds that of TPUs itself."""
    if not stack.is_spot:
        return {}
    taint = {"key": f"{GKE}/gke-spot", "operator": "Equal", "value": Quoted("true")}
    return {"tolerations": [{**taint, "effect": "NoSchedule"}]}


def _environment(stack: Stack, record: JobRecord, programs: str) -> list[dict[str, Any]]:
    """Variables by name; those of tpuctl, and secrets, take precedence, as on TPU VMs."""
    values = {
        **stack.file.job.env,
        "TPUCTL_JOB": record.id,
        "TPUCTL_WORKERS": str(record.worker_count),
        "TPUCTL_BUCKET": record.bucket,
        "TPUCTL_OUTPUT": record.output,
        "TPUCTL_CLOUD": "google",
        "TPUCTL_PROGRAMS": programs,
        "TPUCTL_SPEC": json.dumps(_spec(stack, record), indent=2),
    }
    variables: dict[str, dict[str, Any]] = {
        name: {"value": Quoted(_literal(value))} for name, value in values.items()
    }
    for name, label in (
        ("JOBSET_RESTART_ATTEMPT", "jobset.sigs.k8s.io/restart-attempt"),
        ("JOBSET_JOB_INDEX", "jobset.sigs.k8s.io/job-index"),
    ):
        field = {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}
        variables[name] = {"valueFrom": field}
    for name in stack.secrets:
        variables[name] = {"valueFrom": {"secretKeyRef": {"name": secret_name(stack), "key": name}}}
    return [{"name": name, **source} for name, source in variables.items()]


def _spec(stack: Stack, record: JobRecord) -> dict[str, Any]:
    """What `pod.py` reads: the keys of a spec.json that all workers share."""
    compiled = f"{stack.accelerator.generation}/gke/jax" if stack.file.job.cache else None
    return {
        "job": record.id,
        "workers": record.worker_count,
        "slices": record.slices,
        "bucket": record.bucket,
        "bundle": {"sha256": record.bundle, "name": record.bundle_name},
        "install": record.installation.model_dump(exclude_defaults=True),
        "cache": cache_spec(compiled),
        "tools": TOOLS,
        **_network(stack, record),
    }


def _network(stack: Stack, record: JobRecord) -> dict[str, Any]:
    """The company's network, without a proxy to other pods, and which variables are the job's."""
    network = network_settings(stack.file, stack.folder)
    if network is None:
        return {}
    if network["no_proxy"]:
        network["no_proxy"] += [f".{record.id}", ".svc", ".cluster.local"]
    return {"network": network, "job_variables": sorted({*stack.file.job.env, *stack.secrets})}


def _literal(text: str) -> str:
    """Kubernetes replaces $(NAME) and $$ in commands and variables."""
    return text.replace("$", "$$")


# YAML ---------------------------------------------------------------------------------------


class Quoted(str):
    """A string in quotes, since versions of YAML disagree about plain ones, such as 0o14."""


class _Dumper(yaml.SafeDumper):
    pass


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"' if isinstance(text, Quoted) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)
_Dumper.add_representer(Quoted, _represent)
