"""The user of this process. Containers often run with a user ID that has no account."""

from __future__ import annotations

import os
import pwd
from collections.abc import MutableMapping

NAME = "tpuctl"
VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # as in getpass.getuser


def has_account() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def name_user(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the user's name and home where neither an account nor a variable says them.

    Everything that asks for them then gets an answer, in libraries and child processes, too. The
    home is that of Docker in this case.
    """
    if has_account():
        return
    if not any(environment.get(name) for name in VARIABLES):
        environment["LOGNAME"] = environment["USER"] = NAME
    if not environment.get("HOME"):
        environment["HOME"] = "/"


def user_at_host() -> str:
    """USER@HOST of this process, for records."""
    import getpass
    import platform

    return f"{getpass.getuser()}@{platform.node()}"
