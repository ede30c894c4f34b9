"""Hand a job, or a stack's queue, over to the stack's controller, which works on it unattended.

The controller runs `tpuctl wait JOB`, or `tpuctl jobs run`, with the same version of tpuctl and a
stack file in which every automatic choice is fixed. `jobs/shipped/recovery/recoverer.py` keeps it
running there.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.objects import ObjectInfo, ObjectStore
from tpuctl.engine.planner import observe, plan_up
from tpuctl.engine.resource import Report
from tpuctl.engine.step import step
from tpuctl.errors import Diagnostic, RemoteFailed, TpuctlError
from tpuctl.flows.context import CLOUD, CONTROLLER, CONTROLLER_ZONE, Keys, known_hosts
from tpuctl.flows.machines.controller import with_controller_zone
from tpuctl.flows.machines.os_login import with_os_login
from tpuctl.flows.machines.workers import connect_workers, controller_transport
from tpuctl.flows.packages.controller_packages import controller_source
from tpuctl.jobs.launch import build_archive
from tpuctl.jobs.wheel import controller_wheel
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.proxy import company_certificates, network_settings
from tpuctl.model.stack.secret_sources import source_of
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.names import queued_stack_file
from tpuctl.model.text.ssh_key_lines import public_key_line, ssh_keys_with
from tpuctl.polling import gather_all
from tpuctl.remote.ssh import SshTransport
from tpuctl.remote.transport import Result, Transport
from tpuctl.resources.composition import kind_of, resources_of
from tpuctl.resources.machines.boot_image import DEFAULT_IMAGE
from tpuctl.resources.network.network import Network

TOOLS = ".tpuctl/controller"  # a folder on the controller, like the next three
CONFIG = ".tpuctl/config"
RECOVERER = ("folder.py", "recoverer.py")  # the first is imported by the second
INSTALLER = ("network_variables.py", "storage.py", "installer.py")
PROGRAMS = ".tpuctl/programs"
JOBS = ".tpuctl/recover"
STARTUP = "startup-script"
NO_PYTHON = 4  # exit code of `installer.py`
LAST_LINES = 3  # of its output, shown when it fails
UNPACK = 'umask 077 && mkdir -p "$1" && tar -xf - -C "$1"'
LOOK = (
    f'{UNPACK} && python3 -S -I "$1/installer.py" find "$2" "$3"'
    ' && python3 -S -I "$1/recoverer.py" key "$4"'
)
# Renamed into place, `command.json` last: a folder without it is ignored, and another command of
# the same folder may be running.
START = (
    'umask 077 && mkdir -p "$1" && new=$(mktemp -d .tpuctl/new.XXXXXX) && tar -xf - -C "$new" '
    '&& mv "$new/command.json" "$new.json" && mv -f "$new"/* "$1" && rmdir "$new" '
    '&& mv -f "$new.json" "$1/command.json" && python3 -S -I "$1/recoverer.py" start "$1"'
)


@dataclass(frozen=True)
class _ControllerSetup:
    """What is set up on the controller to recover jobs."""

    program: str  # the path of its tpuctl
    ssh_keys: str  # metadata value with the authorized keys for machines that it creates
    node_range: str  # address range of the stack's TPU node; empty if there is none


@dataclass(frozen=True)
class ReadyController:
    """A controller with this tpuctl, which can be given work."""

    stack: Stack
    cloud: Cloud
    transport: Transport
    program: str
    file: dict[str, Any]  # the stack file for what it runs

    async def start(
        self,
        folder: str,
        command: Sequence[str],
        *,
        variables: Mapping[str, str] | None = None,
        order: Mapping[str, str] | None = None,
    ) -> None:
        """Have it run a tpuctl command until that is done; see `recoverer.py` for `order`."""
        name = self.stack.names.controller
        options = ("--cloud", "google", "--stack-file", "tpuctl.yaml", "--json", "--events")
        content = {
            "job": folder,
            "argv": [self.program, *options, *command],
            "env": {
                **(variables or {}),
                "TPUCTL_CONFIG_HOME": f"~/{CONFIG}",
                CONTROLLER: name,
                CONTROLLER_ZONE: self.stack.zone_of_controller,
                CLOUD: self.cloud.endpoint.name,
            },
            **(order or {}),
        }
        files = {"tpuctl.yaml": _json(self.file), **_startup_script(self.stack)}
        archive = build_archive(RECOVERER, {**files, "command.json": _json(content)})
        argv = ["sh", "-c", START, "sh", f"{JOBS}/{folder}"]
        result = await self.transport.run(argv, input=archive)
        result.check(f"controller {name}: starting {' '.join(command)}")

    async def start_queue(self) -> None:
        """Have it run the jobs of the stack's queue until that is empty."""
        await self._repeat("queue", ["jobs", "run"])

    async def start_up(self, *, race: bool = False) -> None:
        """Have it create the TPU, trying again until it is there."""
        await self._repeat("up", ["up", *["--race"] * race])

    async def _repeat(self, folder: str, command: Sequence[str]) -> None:
        """Have it repeat a command until that succeeds. No job has such an id as the folder."""
        order = {"until": "success", "order": secrets.token_hex(8)}
        await self.start(folder, ["--yes", *command], order=order)


@asynccontextmanager
async def ready_controller(
    stack: Stack, cloud: Cloud, keys: Keys, emit: Emit, report: Report, *, may_boot: bool = True
) -> AsyncIterator[ReadyController]:
    """A connection to the stack's controller, with this tpuctl installed there. Waits for one that
    `may_boot`."""
    transport = await _transport(stack, cloud, keys, emit)
    try:
        if may_boot:
            await connect_workers(cloud, [transport])
        stack = await with_os_login(await with_controller_zone(stack, cloud), cloud)
        setup = await _install(stack, cloud, transport, keys, emit, report)
        network = await Network(stack, cloud).usable_name()
        file = stack_file(stack, network, setup.ssh_keys, setup.node_range)
        yield ReadyController(stack, cloud, transport, setup.program, file)
    finally:
        await transport.close()


async def has_queue(stack: Stack, cloud: Cloud) -> bool:
    """Whether jobs may wait in the stack's queue."""
    return bool(await queued_stack_files(cloud.objects(stack.bucket), stack.name))


async def queued_stack_files(store: ObjectStore, stack: str) -> list[ObjectInfo]:
    """The stack files of a stack's queued jobs, and of some that have ended."""
    every = queued_stack_file(stack, "*")
    return await store.list(every.partition("*")[0], every)


async def prepare_controller(stack: Stack, cloud: Cloud, keys: Keys, emit: Emit) -> None:
    """Set up the controller to recover jobs, and to run the queue, if there is one. Errors become
    warnings."""
    if not stack.has_recovery:
        return
    because = "it recovers jobs after a preemption"
    try:
        with step(emit, f"controller/{stack.names.controller}", "update", because) as progress:
            async with ready_controller(stack, cloud, keys, emit, progress.report) as controller:
                if await has_queue(stack, cloud):
                    await controller.start_queue()
    except TpuctlError as error:
        emit(WarningIssued(_warning("Controller cannot recover jobs", error)))


async def hand_over(
    stack: Stack,
    cloud: Cloud,
    record: JobRecord,
    keys: Keys,
    emit: Emit,
) -> bool:
    """Have the controller recover the job; return whether it will. Errors become warnings.

    The job's environment, and secrets read from this one, are sent over SSH to files that only
    the controller's user may read; they are deleted when the job has ended.
    """
    if not stack.has_recovery:
        return False
    in_zone = stack.in_zone(record.zone)
    name = in_zone.names.controller
    because = f"{name} recovers it unattended"
    try:
        with step(emit, "job/recovery", "start", because) as progress:
            async with ready_controller(
                in_zone, cloud, keys, emit, progress.report, may_boot=False
            ) as controller:
                variables = _secret_variables(record)
                await controller.start(record.id, ["wait", record.id], variables=variables)
            progress.result = f"{name} recovers {record.id} after a preemption"
    except TpuctlError as error:
        emit(WarningIssued(_warning("Controller does not recover the job", error)))
        return False
    return True


def stack_file(stack: Stack, network: str, ssh_keys: str, node_range: str) -> dict[str, Any]:
    """The stack file for the controller: the same stack with every automatic choice fixed.

    Machines that it creates authorize the same SSH keys as before.
    """
    content: dict[str, Any] = stack.file.model_dump(mode="json", exclude_defaults=True)
    for section in ("bucket", "network", "access"):
        content.setdefault(section, {})
    content["stack"] = stack.name
    content.pop("names", None)  # its prefix is in the name
    content["project"] = {"id": stack.project}
    places = stack.controller_places
    content["tpu"]["zones"] = [*dict.fromkeys(place.zone for place in places)]
    if not stack.is_compute:  # otherwise its machines have the only image that there is
        content["tpu"]["runtime"] = stack.runtime.version
    if alternatives := _alternatives(stack, places):
        content["tpu"]["any_of"] = alternatives
    content["tpu"]["metadata"] = {**stack.file.tpu.metadata, "ssh-keys": ssh_keys}
    if stack.file.tpu.startup_script is not None:
        content["tpu"]["startup_script"] = STARTUP
    content["bucket"] |= {"name": stack.bucket, "location": stack.bucket_location}
    content["bucket"]["allow_egress"] = True  # its location was accepted when it was created
    if stack.file.network.ca is not None:
        content["network"]["ca"] = company_certificates(stack.file, stack.folder)
    if not stack.has_shared_network:
        content["network"]["name"] = network
    if node_range and stack.file.network.node_range == "auto":
        content["network"]["node_range"] = node_range
    content["access"] = {"user": stack.user}
    if stack.controller is not None:
        content["controller"] = stack.controller.model_dump(mode="json")
    return content


def _alternatives(stack: Stack, places: Sequence[Candidate]) -> list[dict[str, Any]]:
    """What the controller may create in these places; nothing if it is one TPU."""
    zones: dict[int, dict[str, None]] = {}
    for place in places:
        zones.setdefault(place.alternative, {})[place.zone] = None
    if len(zones) == 1:
        return []
    first = {place.alternative: place for place in reversed(places)}
    return [
        _alternative(stack.at(first[index])) | {"zones": [*names]} for index, names in zones.items()
    ]


def _alternative(stack: Stack) -> dict[str, Any]:
    fields = {"type", "topology", "capacity", "reservation", "queue", "slices"}
    runtime = "auto" if stack.is_compute else stack.runtime.version
    fixed = {"runtime": runtime, "api": stack.file.tpu.api or stack.api}
    return stack.file.tpu.model_dump(mode="json", include=fields) | fixed


def _secret_variables(record: JobRecord) -> dict[str, str]:
    """The variables of this machine that hold the job's secrets."""
    sources = [source_of(name, text, record.project) for name, text in record.secrets.items()]
    variables = {source.variable for source in sources if source.variable}
    return {name: os.environ[name] for name in sorted(variables) if name in os.environ}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1).encode()


def _startup_script(stack: Stack) -> dict[str, bytes]:
    script = stack.file.tpu.startup_script
    return {} if script is None else {STARTUP: (stack.folder / script).read_bytes()}


async def _transport(stack: Stack, cloud: Cloud, keys: Keys, emit: Emit) -> SshTransport:
    return await controller_transport(
        stack, cloud, key=keys.pair.path, known_hosts=known_hosts(), emit=emit
    )


async def _install(
    stack: Stack,
    cloud: Cloud,
    transport: Transport,
    keys: Keys,
    emit: Emit,
    report: Report,
) -> _ControllerSetup:
    """Install this tpuctl on the controller, and authorize the controller's key on the machines."""
    wheel = controller_wheel()
    argv = ["sh", "-c", LOOK, "sh", TOOLS, wheel.version, wheel.digest, CONFIG]
    network = _json(network_settings(stack.file, stack.folder) or {})
    archive = build_archive([*INSTALLER, *RECOVERER], {"network.json": network})
    result = await transport.run(argv, input=archive)
    result.check("checking tpuctl on the controller")
    program, public = (json.loads(line) for line in result.stdout.splitlines())
    if program["program"] is None:
        report("installing this tpuctl on the controller", None)
        await transport.put(wheel.build(), f"{PROGRAMS}/{wheel.digest}/{wheel.name}")
        installer = ["python3", "-S", "-I", f"{TOOLS}/installer.py"]
        argv = [*installer, "install", wheel.version, wheel.digest]
        if not stack.has_internet:
            argv.append(json.dumps(await controller_source(stack, cloud, emit)))
        program = install_result(await transport.run(argv), stack)
    # The next `up` from this machine needs the controller's key as well.
    keys.save_controller_key(public["key"])
    lines = "\n".join([keys.pair.public_line, public["key"]])
    return _ControllerSetup(program["program"], *await _authorize_keys(stack, cloud, lines, report))


def install_result(result: Result, stack: Stack) -> dict[str, Any]:
    """The answer of `installer.py`. Raises RemoteFailed if the installation failed."""
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    last = "; ".join(line.strip() for line in lines[-LAST_LINES:])
    if result.exit_code == NO_PYTHON:
        raise RemoteFailed(
            "Python on the controller is too old",
            f"controller {stack.names.controller}: {lines[-1]}",
            hint="Choose an image with Python 3.11 or newer, then recreate the stack:\n"
            f"    controller: {{image: {DEFAULT_IMAGE}}}",
        )
    if result.exit_code != 0:
        raise RemoteFailed(
            "Cannot install tpuctl on the controller",
            f"{stack.names.controller}: {last}",
            hint="It needs access to a package index, or an image with this tpuctl. Then run\n"
            "    tpuctl up",
        )
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


async def _authorize_keys(stack: Stack, cloud: Cloud, keys: str, report: Report) -> tuple[str, str]:
    """Authorize these keys on the machines that run jobs; return all authorized keys and the node
    range, for the controller's stack file."""
    resources = [
        resource
        for resource in resources_of(stack, cloud, public_key=lambda: keys)
        if kind_of(resource.address).is_machine
    ]
    snapshot = await observe(resources)
    changes = [change for change in plan_up(resources, snapshot) if "ssh-keys" in change.fields]
    if changes:
        report("authorizing the controller's SSH key", None)
    by_address = {resource.address: resource for resource in resources}
    await gather_all(by_address[step.address].apply(step, report) for step in changes)
    observed = list(snapshot.values())
    new_keys = public_key_line(stack.user, keys)
    return ssh_keys_with(_authorized_keys(observed), new_keys), _node_range(
        observed
    ) if stack.is_node else ""


def _authorized_keys(observed: Sequence[Any]) -> str:
    """The metadata value with the SSH keys authorized on the stack's TPU VMs."""
    for resource in observed:
        nodes = list(getattr(resource, "nodes", {}).values()) or [resource]
        metadata: Any = getattr(nodes[0], "metadata", None)
        if isinstance(metadata, Mapping):
            return str(metadata.get("ssh-keys", ""))
    return ""


def _node_range(observed: Sequence[Any]) -> str:
    """The address range of a TPU node (API v1)."""
    return next((node.cidr_block for node in observed if hasattr(node, "cidr_block")), "")


def _warning(summary: str, error: TpuctlError) -> Diagnostic:
    """A warning with the error and its effect on jobs."""
    diagnostic = error.diagnostics[0]
    return Diagnostic(
        summary,
        f"{diagnostic.summary}: {diagnostic.detail}. Jobs still run, but after a preemption they "
        "wait until you follow them again",
        hint=diagnostic.hint or "Update it:\n    tpuctl up",
    )
