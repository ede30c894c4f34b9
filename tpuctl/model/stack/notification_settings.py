"""What the programs on machines know of `notify` in the stack file."""

from __future__ import annotations

from typing import Any

from tpuctl.model.stack.stack import Stack


def notification_settings(stack: Stack, hourly: float | None) -> dict[str, Any] | None:
    """The settings that `jobs/shipped/notifications/bell.py` reads; None without `notify`.

    `hourly` is the stack's cost in dollars. The webhook's URL is not among the settings: machines
    read the secret themselves.
    """
    notify, source = stack.file.notify, stack.webhook
    if notify is None or source is None:
        return None
    return {
        "secret": source.reference,
        "on": list(notify.on),
        "format": notify.format,
        "prefix": stack.names.notifications,
        "stack": stack.names.owner,
        "project": stack.project,
        "zone": stack.zone,
        "hourly": hourly,
        "stack_record": stack.names.record,
    }
