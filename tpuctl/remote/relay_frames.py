"""Frames of the Identity-Aware Proxy tunnel protocol: one frame per WebSocket message.

A frame begins with a two-byte tag; numbers are unsigned and big-endian:

    1  connected          length (4 bytes), session ID
    2  reconnected        bytes received by the relay (8)
    4  data               length (4), bytes
    7  acknowledgement    bytes received by the sender of the frame (8)

Bytes are counted from the start of the session, across its connections. Extra content and unknown
tags are ignored, as the relay may support more than we do.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

SUBPROTOCOL = "relay.tunnel.cloudproxy.app"
MAX_DATA_BYTES = 16 * 1024  # of data in one frame
CONNECTED, RECONNECTED, DATA, ACKNOWLEDGED = 1, 2, 4, 7


class ProtocolError(Exception):
    """The relay violated the protocol."""


@dataclass(frozen=True)
class Connected:
    """The session is open, and can be resumed by this ID."""

    session: str


@dataclass(frozen=True)
class Reconnected:
    """The session was resumed; the relay has received `count` bytes."""

    count: int


@dataclass(frozen=True)
class Data:
    content: bytes


@dataclass(frozen=True)
class Acknowledged:
    """The relay has received `count` bytes."""

    count: int


Frame: TypeAlias = Connected | Reconnected | Data | Acknowledged


def parse_frame(message: bytes) -> Frame | None:
    """Parse a message; None for unknown tags. Raises ProtocolError."""
    try:
        (tag,) = struct.unpack_from(">H", message)
        if tag in (RECONNECTED, ACKNOWLEDGED):
            (count,) = struct.unpack_from(">Q", message, 2)
            return Reconnected(count) if tag == RECONNECTED else Acknowledged(count)
        if tag not in (CONNECTED, DATA):
            return None
        (length,) = struct.unpack_from(">I", message, 2)
    except struct.error as error:
        raise ProtocolError(f"a message of {len(message)} bytes is truncated") from error
    content = message[6 : 6 + length]
    if len(content) < length:
        raise ProtocolError(f"a message declares {length} bytes and has {len(content)}")
    if tag == DATA:
        return Data(content)
    try:
        return Connected(content.decode("ascii"))
    except UnicodeDecodeError as error:
        raise ProtocolError("a session ID is not ASCII") from error


def encode_data(content: bytes) -> bytes:
    """A message with these bytes, up to MAX_DATA_BYTES."""
    return struct.pack(">HI", DATA, len(content)) + content


def encode_acknowledgement(count: int) -> bytes:
    """A message that acknowledges `count` bytes."""
    return struct.pack(">HQ", ACKNOWLEDGED, count)
