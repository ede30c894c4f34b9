"""What is said inside a tunnel of Identity-Aware Proxy: one message of a WebSocket is one frame.

A frame begins with a tag of two bytes, and numbers are unsigned with the highest byte first:

    1  connected          length (4 bytes), the session's name
    2  connected again    bytes of ours that arrived (8)
    4  data               length (4), the bytes
    7  acknowledgement    bytes of the other's that arrived (8)

Bytes are counted from the session's beginning, over all its connections. What else a frame holds
is passed over, and so are frames of other tags: the relay may know more than we do.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "LONGEST",
    "SUBPROTOCOL",
    "Arrived",
    "Broken",
    "Connected",
    "Data",
    "Frame",
    "Reconnected",
    "acknowledgement",
    "data",
    "frame",
]

SUBPROTOCOL = "relay.tunnel.cloudproxy.app"
LONGEST = 16 * 1024  # bytes of data in one frame
CONNECTED, RECONNECTED, DATA, ARRIVED = 1, 2, 4, 7


class Broken(Exception):
    """The other side does not keep to the protocol."""


@dataclass(frozen=True)
class Connected:
    """The session is open, and can be taken up again under this name."""

    session: str


@dataclass(frozen=True)
class Reconnected:
    """The session was taken up again; so many bytes of ours had arrived."""

    count: int


@dataclass(frozen=True)
class Data:
    content: bytes


@dataclass(frozen=True)
class Arrived:
    """So many bytes of ours have arrived."""

    count: int


Frame: TypeAlias = Connected | Reconnected | Data | Arrived


def frame(message: bytes) -> Frame | None:
    """What a message says; None for what need not be understood. Raises Broken."""
    try:
        (tag,) = struct.unpack_from(">H", message)
        if tag in (RECONNECTED, ARRIVED):
            (count,) = struct.unpack_from(">Q", message, 2)
            return Reconnected(count) if tag == RECONNECTED else Arrived(count)
        if tag not in (CONNECTED, DATA):
            return None
        (length,) = struct.unpack_from(">I", message, 2)
    except struct.error as error:
        raise Broken(f"a message of {len(message)} bytes ends in the middle") from error
    content = message[6 : 6 + length]
    if len(content) < length:
        raise Broken(f"a message announces {length} bytes and has {len(content)}")
    if tag == DATA:
        return Data(content)
    try:
        return Connected(content.decode("ascii"))
    except UnicodeDecodeError as error:
        raise Broken("a session has a name that is no text") from error


def data(content: bytes) -> bytes:
    """The message that carries these bytes, at most LONGEST."""
    return struct.pack(">HI", DATA, len(content)) + content


def acknowledgement(count: int) -> bytes:
    """The message that tells how many bytes have arrived here."""
    return struct.pack(">HQ", ARRIVED, count)
