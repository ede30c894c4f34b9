"""A port that stays free until a test's own server listens there."""

from __future__ import annotations

import random
import socket

# Below the ephemeral ports, which any connection of another test may be given meanwhile, and below
# the ports of machines (`emulator/machines/network/addresses.py`).
PORTS = range(10_000, 20_000)
_random = random.SystemRandom()  # tests seed the module's generator, in each process alike


def free_port() -> int:
    """A port at which nothing listens on the loopback interface."""
    while True:
        port = _random.choice(PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
