"""The gateway's port and credentials, persisted for shells."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

MACHINE = "machine"  # reaches other hosts as the local cloud's process does
SHELL = "shell"  # reaches them as its shell did before, through that shell's proxy, if any


@dataclass(frozen=True)
class GatewayAddress:
    """The port and the password of a local cloud's gateway, in its folder."""

    port: int
    password: str

    @classmethod
    def read(cls, home: Path) -> GatewayAddress | None:
        """The address that was used last, if any."""
        try:
            saved = json.loads((home / "gateway.json").read_text("utf-8"))
            return cls(int(saved["port"]), str(saved["password"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def new(cls) -> GatewayAddress:
        return cls(0, secrets.token_urlsafe(24))

    def write(self, home: Path) -> None:
        text = json.dumps({"port": self.port, "password": self.password})
        write_private(home / "gateway.json", text)

    def url(self, user: str) -> str:
        """The proxy URL, with credentials."""
        return f"http://{user}:{self.password}@127.0.0.1:{self.port}"


def machine_user(name: str) -> str:
    """The user of one machine, whose networks limit what it reaches."""
    return f"{MACHINE}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def with_next_proxy(url: str, proxy: str) -> str:
    """A machine's URL of the gateway, for other hosts through a proxy, written in hexadecimal."""
    scheme, user, rest = url.split(":", 2)
    return f"{scheme}:{user}.{proxy}:{rest}"


def shell_user(home: Path, upstream: str | None) -> str:
    """The user whose traffic to other hosts uses this proxy, or none.

    The proxy's URL, which may contain a password, stays in the local cloud's folder.
    """
    if upstream is None:
        return SHELL
    name = hashlib.sha256(upstream.encode()).hexdigest()[:16]
    folder = home / "upstreams"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder / name, upstream)
    return f"{SHELL}-{name}"


def read_upstream(home: Path, user: str) -> str | None:
    """The proxy that `shell_user` was given. Raises KeyError for an unknown user."""
    if user == SHELL:
        return None
    name = user.removeprefix(f"{SHELL}-")
    if name != user and name.isalnum():
        with contextlib.suppress(OSError):
            return (home / "upstreams" / name).read_text("utf-8")
    raise KeyError(user)


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
