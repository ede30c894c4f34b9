"""ProxyCommand of `tpuctl ssh-config`: connects stdin and stdout to a stack's machine.

python -m tpuctl.api.host_tunnel CLOUD STACK_FILE MACHINE

MACHINE is a worker or `controller`. The cloud is asked where it is, and for its host key.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tpuctl.api.tunnel import main, run_tunnel, show, standard_streams

if TYPE_CHECKING:
    from tpuctl.model.events import Event

__all__: list[str] = []


async def _connect(cloud: str, stack_file: str, machine: str) -> None:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.flows.machines.ssh import resolve_host
    from tpuctl.remote.ports import connect_streams

    tpuctl = Tpuctl(stack_file, cloud=cloud, emit=_show_warning)
    address = (await resolve_host(tpuctl.context, machine)).address
    if address.route is not None:
        await run_tunnel(address.route)
    else:
        await connect_streams(address.host, address.port, *await standard_streams())


def _show_warning(event: Event) -> None:
    from tpuctl.model.events import WarningIssued

    if isinstance(event, WarningIssued):
        show(event.diagnostic)


if __name__ == "__main__":
    sys.exit(main(_connect(*sys.argv[1:])))
