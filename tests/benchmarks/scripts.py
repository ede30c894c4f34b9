"""The duration of equivalent gcloud scripts on the same local cloud, as whole programs.

`up` is compared with shell scripts of gcloud commands that create the same stack: one command
after another, and with everything in the background that has no dependencies. The scripts
stop where the API does; `up` also waits for SSH and installs its watchdog on every machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Any

from tests.benchmarks.figures import (
    TPUCTL,
    Figure,
    gcloud_environment,
    goal,
    local_cloud,
    sized,
    skipped,
    stack_in,
)
from tests.benchmarks.ups import BILLING, KINDS, MEASURED, missing_image
from tests.support.locations import PROJECT, US_ZONE
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import server_process

__all__ = ["gcloud_time", "scripts_time"]

STATUS_GOAL = 0.8  # of the time of gcloud's list
PACE = sized("quick", "instant")
Command = list[str]


@dataclass(frozen=True)
class Step:
    """One command of a script, and the names of those that must finish before it."""

    name: str
    command: Command
    after: tuple[str, ...] = ()


def timed(command: Command, environment: Mapping[str, str], folder: Path) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return time.perf_counter() - started


def one_by_one(steps: list[Step]) -> str:
    return "\n".join(["set -e", *(join(step.command) for step in steps)])


def at_once(steps: list[Step]) -> str:
    """Run everything in the background, each command after those that it depends on."""
    lines, waited = ["set -e"], set[str]()
    for step in steps:
        lines += [f'wait "${name}"' for name in step.after if name not in waited]
        waited |= set(step.after)
        lines.append(f"{join(step.command)} & {step.name}=$!")
    lines += [f'wait "${step.name}"' for step in steps if step.name not in waited]
    return "\n".join(lines)


# The stacks, as scripts.


class ExistingStack:
    """The stack that `up` created, read from the local cloud: the scripts create the same."""

    def __init__(self, cloud: server_process.LocalCloud, stack: Tpuctl) -> None:
        self._cloud = cloud
        self.project = stack.stack.project
        self.names = stack.stack.names
        self.bucket = stack.stack.bucket
        self.email = self.names.service_account_email
        services = self._request(
            "GET", f"/v1/projects/{self.project}/services?filter=state:ENABLED"
        )
        self.apis = [service["config"]["name"] for service in services["services"]]

    def _request(self, verb: str, path: str) -> dict[str, Any]:
        return server_process.request(self._cloud, verb, path, {} if verb == "POST" else None)

    def project_roles(self) -> list[str]:
        return _roles(
            self._request("POST", f"/v3/projects/{self.project}:getIamPolicy"), self.email
        )

    def account_roles(self) -> list[str]:
        """The roles of the stack's account on itself."""
        path = f"/v1/projects/{self.project}/serviceAccounts/{self.email}:getIamPolicy"
        return _roles(self._request("POST", path), self.email)

    def bucket_roles(self, email: str) -> list[str]:
        return _roles(self._request("GET", f"/storage/v1/b/{self.bucket}/iam"), email)

    def tensorflow(self) -> str:
        """The version of the TPU node."""
        path = f"/v1/projects/{self.project}/locations/{US_ZONE}/nodes"
        found: str = self._request("GET", path)["nodes"][0]["tensorflowVersion"]
        return found

    def permissions(self, role: str) -> list[str]:
        """The permissions of a custom role."""
        found: list[str] = self._request("GET", f"/v1/{role}")["includedPermissions"]
        return found

    def rights(self) -> dict[str, list[str]]:
        """All grants of the stack's account, in order."""
        project_roles = self.project_roles()
        return {
            "project": sorted(project_roles),
            "bucket": sorted(self.bucket_roles(self.email)),
            "account": sorted(self.account_roles()),
            **{role: sorted(self.permissions(role)) for role in _custom(project_roles)},
        }


def _roles(policy: dict[str, Any], email: str) -> list[str]:
    member = f"serviceAccount:{email}"
    bindings = policy.get("bindings", [])
    return [binding["role"] for binding in bindings if member in binding["members"]]


def _custom(roles: list[str]) -> list[str]:
    """The custom roles of the stack, which a script must create before it grants them."""
    return [role for role in roles if role.startswith("projects/")]


def script_of(kind: str, existing: ExistingStack) -> list[Step]:
    """The commands for a stack of that kind, in a valid order."""
    name, email = existing.names.node, existing.email
    roles = existing.project_roles()
    steps = []
    if kind == "new project":
        steps.append(Step("project", ["gcloud", "projects", "create", existing.project]))
        billing = ["gcloud", "billing", "projects", "link", existing.project]
        steps.append(Step("billing", [*billing, f"--billing-account={BILLING}"], ("project",)))
    bucket, member = f"gs://{existing.bucket}", f"--member=serviceAccount:{email}"
    rule = ["gcloud", "compute", "firewall-rules", "create", "bench-ssh", "--allow=tcp:22"]
    identity = ["gcloud", "beta", "services", "identity", "create"]
    steps += [
        Step(
            "apis",
            ["gcloud", "services", "enable", *existing.apis],
            ("billing",) if kind == "new project" else (),
        ),
        Step(
            "account",
            ["gcloud", "iam", "service-accounts", "create", existing.names.service_account],
            ("apis",),
        ),
        Step("bucket", ["gcloud", "storage", "buckets", "create", bucket], ("apis",)),
        Step("firewall", [*rule, "--source-ranges=127.0.0.0/8"], ("apis",)),
        Step("identity", [*identity, "--service=tpu.googleapis.com"], ("apis",)),
    ]
    custom_roles = []
    for number, role in enumerate(_custom(roles)):
        create = ["gcloud", "iam", "roles", "create", role.rpartition("/")[2]]
        allowed = f"--permissions={','.join(existing.permissions(role))}"
        custom_roles.append(
            Step(f"role_{number}", [*create, f"--project={existing.project}", allowed], ("apis",))
        )
    steps += [*custom_roles, *_machines(kind, name, existing)]
    grant = "add-iam-policy-binding"
    account = ["gcloud", "iam", "service-accounts", grant, email, f"--project={existing.project}"]
    steps += _grants(
        "grant",
        ["gcloud", "projects", grant, existing.project, member],
        roles,
        ("account", *(step.name for step in custom_roles)),
    )
    steps += _grants(
        "opened",
        ["gcloud", "storage", "buckets", grant, bucket, member],
        existing.bucket_roles(email),
        ("account", "bucket"),
    )
    steps += _grants("acting", [*account, member], existing.account_roles(), ("account",))
    return steps


def _grants(
    name: str, command: Command, roles: list[str], after: tuple[str, ...]
) -> Iterator[Step]:
    """Run one after another: each reads the policy, changes it and writes it back."""
    for number, role in enumerate(roles):
        yield Step(f"{name}_{number}", [*command, f"--role={role}"], after)
        after = (f"{name}_{number}",)


def _machines(kind: str, name: str, existing: ExistingStack) -> Iterator[Step]:
    place = [f"--zone={US_ZONE}", "--quiet"]
    tpu = ["gcloud", "compute", "tpus"]
    accelerator = ["--accelerator-type=v2-8", "--version=tpu-ubuntu2204-base"]
    acting = [f"--service-account={existing.email}"]
    controller = [
        *("gcloud", "compute", "instances", "create", f"{name}-controller", *place, *acting),
        *("--machine-type=n1-standard-1", "--scopes=cloud-platform"),
        *("--image-family=ubuntu-2204-lts", "--image-project=ubuntu-os-cloud"),
    ]
    after: tuple[str, ...] = ("account",)
    if kind == "TPU node, controller":
        yield Step("controller", controller, after)
        node = [*tpu, "create", name, *place, "--accelerator-type=v2-8", "--network=default"]
        yield Step("node", [*node, f"--version={existing.tensorflow()}"], ("apis",))
        return
    if kind == "queued resource":
        queue = [*tpu, "queued-resources", "create", f"{name}-queue", f"--node-id={name}"]
        runtime = [*accelerator[:1], "--runtime-version=tpu-ubuntu2204-base"]
        yield Step("queue", [*queue, *runtime, *acting, *place], after)
        active = [*tpu, "queued-resources", "describe", f"{name}-queue", *place]
        state = "--format=value(state.state)"
        loop = f'until [ "$({join([*active, state])})" = ACTIVE ]; do sleep 1; done'
        yield Step("node", ["bash", "-c", loop], ("queue",))
        return
    disks = []
    if kind == "TPU VM, disk, controller":
        disk = f"{name}-data"
        create = ["gcloud", "compute", "disks", "create", disk, *place, "--size=20GB"]
        yield Step("disk", [*create, "--type=pd-balanced"], ("apis",))
        disks = [f"--data-disk=source=projects/{PROJECT}/zones/{US_ZONE}/disks/{disk}"]
        yield Step("controller", controller, after)
        after = ("account", "disk")
    yield Step(
        "node", [*tpu, "tpu-vm", "create", name, *accelerator, *acting, *disks, *place], after
    )


def scripts_time() -> Iterator[Figure]:
    """`tpuctl up`, as a whole program, compared with both scripts, each in a new local cloud."""
    if shutil.which("gcloud") is None:
        yield skipped("up compared with gcloud's scripts", "gcloud is not installed")
        return
    for kind in MEASURED:
        with local_cloud(PACE) as folder:
            stack = stack_in(folder, **KINDS[kind])
            absent = missing_image(stack)
            if absent:
                reason = f"the image of TensorFlow {absent} does not exist"
                yield skipped(f"up: {kind}", reason)
                continue
            environment = os.environ | {"TPUCTL_CLOUD": "local"}
            command = [*TPUCTL, "--stack-file", str(stack.stack_file), "up", "--yes"]
            tpuctl_seconds = timed(command, environment, folder)
            cloud = server_process.status(folder / "cloud")
            assert cloud is not None
            existing = ExistingStack(cloud, stack)
            steps, rights = script_of(kind, existing), existing.rights()
        seconds = [
            _script_time(text(steps), steps, stack, rights) for text in (one_by_one, at_once)
        ]
        sequential, parallel = (f"{took:.1f} s, {took / tpuctl_seconds:.1f} ×" for took in seconds)
        summary = (
            f"{len(steps)} gcloud commands: sequential {sequential}; fully parallel {parallel}"
        )
        yield Figure(f"tpuctl up: {kind}", f"{tpuctl_seconds:.1f} s", summary)


def _script_time(
    script: str, steps: list[Step], stack: Tpuctl, rights: dict[str, list[str]]
) -> float:
    """Run it in a new local cloud; raises RuntimeError unless the account gets the same grants."""
    with local_cloud(PACE) as folder:
        cloud = server_process.status(folder / "cloud")
        assert cloud is not None
        created = [step.command[-1] for step in steps if step.name == "project"]
        project = created[0] if created else PROJECT
        environment = gcloud_environment(cloud, project, US_ZONE, folder)
        took = timed(["bash", "-c", script], environment, folder)
        granted = ExistingStack(cloud, stack).rights()
        if granted != rights:
            raise RuntimeError(f"the script grants {granted}, and tpuctl up {rights}")
        return took


def gcloud_time() -> Iterator[Figure]:
    """Listing and deleting a TPU VM."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        yield skipped("compared with gcloud", "gcloud is not installed")
        return
    with local_cloud(PACE) as folder:
        cloud = server_process.status(folder / "cloud")
        assert cloud is not None
        environment = gcloud_environment(cloud, PROJECT, US_ZONE, folder)
        tpuctl_environment = os.environ | {"TPUCTL_CLOUD": "local"}
        path = str(stack_in(folder).stack_file)
        timed([*TPUCTL, "--stack-file", path, "up", "--yes"], tpuctl_environment, folder)
        node = [gcloud, "compute", "tpus", "tpu-vm"]
        where = [f"--zone={US_ZONE}", "--quiet"]
        accelerator = ["--accelerator-type=v2-8", "--version=tpu-ubuntu2204-base"]
        timed([*node, "create", "comparison", *accelerator, *where], environment, folder)
        down = ["down", "--yes", "--delete-bucket"]
        for tpuctl_command, other, limit in (
            (["status"], [*node, "list", *where], STATUS_GOAL),
            (down, [*node, "delete", "comparison", *where], None),
        ):
            took = timed(
                [*TPUCTL, "--stack-file", path, *tpuctl_command], tpuctl_environment, folder
            )
            there = timed(other, environment, folder)
            yield Figure(
                f"tpuctl {tpuctl_command[0]}",
                f"{took:.2f} s",
                f"{took / there:.2f} × gcloud … tpu-vm {other[len(node)]} ({there:.2f} s)",
                goal(f"{limit:g} ×", took <= limit * there) if limit is not None else "",
            )
