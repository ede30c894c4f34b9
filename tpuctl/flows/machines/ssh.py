"""`ssh` and `ssh-config`: how the `ssh` program connects to a worker, and by which host name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tpuctl.errors import NotFound, Unreachable
from tpuctl.flows.context import Context, known_hosts
from tpuctl.flows.local_cloud import IMPERSONATE
from tpuctl.flows.machines.workers import controller_transport, nodes_of, select_workers, transports
from tpuctl.jobs.job_shell import JOB_SHELL, in_job_environment
from tpuctl.remote.openssh import Host, openssh_command, write_known_hosts
from tpuctl.remote.ssh import SshTransport

CONTROLLER = "controller"
CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
# Settings of this shell, without which another program's ssh would not find the stack.
VARIABLES = (
    *("TPUCTL_CONFIG_HOME", "TPUCTL_LOCAL_HOME", "CLOUDSDK_CONFIG"),
    CREDENTIALS,
)


async def ssh_command(
    context: Context, worker: int, line: str = "", *, tunnel: Sequence[str] = ()
) -> list[str]:
    """The command line that opens a shell on a worker, or runs the shell command `line` there, both
    in the environment of the worker's latest job.

    `tunnel` is the proxy command for IAP, without its arguments project, zone and instance.
    """
    (transport,) = select_workers(
        await transports(context), worker, context.stack.numbering
    ).values()
    host_keys_file = known_hosts() / f"{context.stack.name}-{worker}"
    proxy: list[str] = []
    if transport.address.route is not None:
        destination = transport.address.route.destination
        proxy = [*tunnel, destination.project, destination.zone, destination.instance]
    remote_line = in_job_environment(line) if line else JOB_SHELL
    return openssh_command(
        transport.address,
        context.keys.pair.path,
        host_keys_file,
        remote_line,
        proxy,
        is_interactive=not line and sys.stdin.isatty(),
    )


async def ssh_hosts(context: Context, tunnel: str, cloud: str) -> list[Host]:
    """A host for each worker of READY nodes, STACK-0 and so on, and STACK-controller if it runs.

    `tunnel` is the module that is their proxy command.
    """
    machines = {transport.name: transport for transport in (await transports(context)).values()}
    if context.stack.controller is not None:
        with suppress(NotFound, Unreachable):  # `up` creates it again
            machines[CONTROLLER] = await _controller(context)
    return [
        Host(
            _host_name(context, machine),
            transport.address,
            context.keys.pair.path.absolute(),
            _known_hosts_file(context, machine),
            (*_proxy_command(tunnel), cloud, str(context.stack.path.absolute()), machine),
        )
        for machine, transport in machines.items()
    ]


async def resolve_host(context: Context, machine: str) -> SshTransport:
    """The worker or `controller` behind a host, whose current keys ssh then finds in its file."""
    if machine == CONTROLLER:
        transport = await _controller(context)
    else:
        numbering = context.stack.numbering
        worker = numbering.number(machine)
        (transport,) = select_workers(await transports(context), worker, numbering).values()
    address = transport.address
    write_known_hosts(
        _known_hosts_file(context, machine), _host_name(context, machine), address.host_keys
    )
    return transport


def _proxy_command(module: str) -> list[str]:
    """Runs a module in any folder, and without the environment of this shell."""
    paths = {name: Path(os.environ[name]) for name in VARIABLES if os.environ.get(name)}
    if not os.access(os.environ.get(CREDENTIALS, ""), os.F_OK):  # it may hold the key itself
        paths.pop(CREDENTIALS, None)
    settings = [f"{name}={path.expanduser().absolute()}" for name, path in paths.items()]
    if account := os.environ.get(IMPERSONATE):
        settings.append(f"{IMPERSONATE}={account}")
    return ["env", *settings, sys.executable, "-P", "-m", module]


async def _controller(context: Context) -> SshTransport:
    (node, *_) = await nodes_of(context.stack, context.cloud)
    return await controller_transport(
        context.stack.in_zone(node.zone),
        context.cloud,
        key=context.keys.pair.path,
        known_hosts=known_hosts(),
        emit=context.emit,
    )


def _host_name(context: Context, machine: str) -> str:
    return f"{context.stack.name}-{machine}"


def _known_hosts_file(context: Context, machine: str) -> Path:
    return known_hosts().absolute() / "hosts" / _host_name(context, machine)
