"""The controller of a TPU node: its status, and the environment that points it at the node."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import NotFound, TpuctlError
from tpuctl.jobs.launch import FirstAccess
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.status import MachineStatus, NodeStatus
from tpuctl.model.text.os_login import os_login_in
from tpuctl.remote.transport import Transport
from tpuctl.resources.base import IAM_PROPAGATION_SECONDS, time_of
from tpuctl.resources.project.stack_record import Record

ENVIRONMENT = ".tpuctl/environment"
SOURCE_LINES = (
    "# Where the TPU is, as tpuctl keeps it.\n"
    f'if [ -f "$HOME/{ENVIRONMENT}" ]; then . "$HOME/{ENVIRONMENT}"; fi\n'
)
# .profile is read by login shells, .bashrc by other bash shells and by commands over SSH. The last
# two, if they exist, are read instead of .profile. True: create the file if it is missing.
PROFILES = {".profile": True, ".bashrc": True, ".bash_profile": False, ".bash_login": False}


def controller_status(instance: Any) -> MachineStatus:
    """The status of an instance. `address` is the external one if it has one."""
    metadata = {item.key: item.value for item in instance.metadata.items}
    address = inner = ""
    for interface in instance.network_interfaces:
        external = [
            access_config.nat_i_p
            for access_config in interface.access_configs
            if access_config.nat_i_p
        ]
        inner = inner or interface.network_i_p
        address = address or (external[0] if external else interface.network_i_p)
    return MachineStatus(
        name=instance.name,
        id=str(instance.id),
        zone=instance.zone.rpartition("/")[2],
        state=instance.status,
        machine_type=instance.machine_type.rpartition("/")[2],
        created=time_of(instance.creation_timestamp),
        address=address,
        ssh_port=int(metadata.get("tpuctl-ssh-port") or 22),
        inner_address=inner,
        os_login=os_login_in(metadata),
    )


async def find_controller(stack: Stack, cloud: Cloud) -> MachineStatus:
    """The stack's controller: that of a TPU node in its zone, another in any of the stack's zones.
    Raises NotFound."""
    others = () if stack.is_node else stack.zones
    for zone in dict.fromkeys((stack.zone_of_controller, stack.zone, *others)):
        with suppress(NotFound):
            instance = await cloud.call(
                f"controller {stack.names.controller}",
                cloud.client("instances").get,
                project=stack.project,
                zone=zone,
                instance=stack.names.controller,
            )
            return controller_status(instance)
    raise NotFound(
        "Controller not found",
        f"stack {stack.name} has no controller in {stack.zone}",
        hint="Create it:\n    tpuctl up",
    )


async def with_controller_zone(stack: Stack, cloud: Cloud) -> Stack:
    """The stack with the zone of its controller, which that of a TPU node shares."""
    if stack.controller is None or stack.is_node:
        return stack
    try:
        zone = (await find_controller(stack, cloud)).zone
    except NotFound:
        return stack
    return replace(stack, controller_zone="" if zone == stack.zone else zone)


async def is_controller_gone(stack: Stack, cloud: Cloud) -> bool:
    """Whether the controller is deleted, stopped or stopping."""
    try:
        controller = await find_controller(stack, cloud)
    except NotFound:
        return True
    return controller.state in ("STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED", "TERMINATED")


async def first_access(stack: Stack, cloud: Cloud, node: NodeStatus) -> FirstAccess | None:
    """How long the service account of a TPU node may still be denied access to the bucket.

    Computed from the time of the grant in the stack's record; None if that is unknown, so that
    a denial is final. A time in the future never extends the period beyond one counted from now.
    """
    try:
        contents = await Record(stack, cloud).read()
    except TpuctlError:  # a job can be submitted without the bucket
        return None
    address, member = f"bucket/{stack.bucket}", f"serviceAccount:{node.service_account}"
    grants = contents.grants_on(address) if contents is not None else ()
    times = [grant.time for grant in grants if grant.member == member and grant.time is not None]
    if not times:
        return None
    since = min(max(times), cloud.server_clock.now())
    return FirstAccess(node.service_account, since + timedelta(seconds=IAM_PROPAGATION_SECONDS))


def node_variables(runtime: str, endpoints: tuple[str, ...]) -> dict[str, str]:
    """The variables with which a program on the controller finds a TPU node without an API call.

    TensorFlow's TPUClusterResolver prefers the first variable to TPU_NAME, as on Kubernetes: a
    comma-separated list of grpc:// addresses, used without a lookup
    (tensorflow/python/tpu/client/client.py of 2.12: `_get_tpu_name`, `network_endpoints`). The
    others are for PyTorch/XLA, on a node with one worker (cloud.google.com/tpu/docs, "Run a
    calculation on a Cloud TPU by using PyTorch", section on TPU nodes).
    """
    if not endpoints:
        return {}
    if runtime.startswith("pytorch"):
        variables = {"TPU_IP_ADDRESS": endpoints[0].partition(":")[0]}
        if len(endpoints) == 1:
            variables["XRT_TPU_CONFIG"] = f"tpu_worker;0;{endpoints[0]}"
        return variables
    return {
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": ",".join(f"grpc://{endpoint}" for endpoint in endpoints)
    }


def shell_variables(stack: Stack, node: NodeStatus, *, cloud: str) -> dict[str, str]:
    """The variables set in every shell on the controller: those of a job that are not per job."""
    return {
        "TPU_NAME": node.name,
        "TPU_ZONE": node.zone,
        "TPU_PROJECT": stack.project,
        "TPUCTL_BUCKET": stack.bucket,
        "TPUCTL_CLOUD": cloud,
        **node_variables(node.runtime, node.endpoints),
    }


async def write_shell_environment(transport: Transport, variables: dict[str, str]) -> None:
    """Set these variables in every new shell on the machine.

    Idempotent: replaces variables set before, and keeps the content of the user's profiles.
    """
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())]
    await transport.put("".join(lines).encode(), ENVIRONMENT, mode=0o644)
    for name, is_created in PROFILES.items():
        read = await transport.run(["cat", name])
        if read.exit_code != 0 and not is_created:
            continue
        text = read.stdout.decode(errors="surrogateescape") if read.exit_code == 0 else ""
        changed = with_source_lines(text)
        if changed != text:
            await transport.put(changed.encode(errors="surrogateescape"), name, mode=0o644)


def with_source_lines(text: str) -> str:
    """The text of a shell profile with the source lines added at the top.

    At the top, since the default .bashrc returns early in non-interactive shells, such as
    commands over SSH.
    """
    return text if SOURCE_LINES in text else SOURCE_LINES + text
