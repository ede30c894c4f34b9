"""The metadata key with which machines, or all of a project, use OS Login."""

from __future__ import annotations

from collections.abc import Mapping

OS_LOGIN = "enable-oslogin"


def os_login_in(metadata: Mapping[str, str]) -> bool | None:
    """Whether metadata turns OS Login on or off; None if it says nothing."""
    return metadata[OS_LOGIN].lower() == "true" if OS_LOGIN in metadata else None
