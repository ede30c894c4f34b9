"""API endpoints: Google's hosts, or one origin on loopback for the local cloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RELAY = "wss://tunnel.cloudproxy.app/v4"


@dataclass(frozen=True)
class Endpoint:
    """An endpoint; `url` and `token` are None for Google, whose hosts the clients know."""

    name: Literal["google", "local"]
    url: str | None = None  # http://127.0.0.1:8001, without a trailing slash
    token: str | None = None
    runs_startup_scripts: bool = True  # a local cloud may not, to protect the computer
    impersonate: str = ""  # the email of the service account to act as

    @property
    def is_local(self) -> bool:
        return self.url is not None

    @property
    def authority(self) -> str:
        """host:port of the local cloud."""
        assert self.url is not None
        return self.url.split("//", 1)[1]

    @property
    def relay(self) -> str:
        """URL of the Identity-Aware Proxy relay, without a trailing slash."""
        return RELAY if self.url is None else f"ws://{self.authority}/v4"


GOOGLE = Endpoint("google")
