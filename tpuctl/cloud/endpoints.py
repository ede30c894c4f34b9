"""Where the APIs are: Google's own hosts, or one origin on loopback. The only difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["GOOGLE", "Endpoint"]

RELAY = "wss://tunnel.cloudproxy.app/v4"


@dataclass(frozen=True)
class Endpoint:
    """`url` and `token` are None for Google, whose hosts and credentials the clients know."""

    name: Literal["google", "local"]
    url: str | None = None  # http://127.0.0.1:8001, without a slash at the end
    token: str | None = None
    runs_startup_scripts: bool = True  # a local cloud may refuse to, for the computer's sake

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
        """Where tunnels of Identity-Aware Proxy begin, without a slash at the end."""
        return RELAY if self.url is None else f"ws://{self.authority}/v4"


GOOGLE = Endpoint("google")
