"""Random gRPC messages."""

from __future__ import annotations

from typing import Any

from tests.support.malformed import ODD_TEXTS, THERE
from tests.support.malformed_bytes import Chance


def random_message(chance: Chance, message: Any, depth: int = 0) -> Any:
    """Set some fields of a message to random values of their types."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() > (0.5, 0.3, 0.1)[min(depth, 2)]:
            continue
        if field.message_type is not None:
            if not field.is_repeated and depth < 3:
                random_message(chance, getattr(message, field.name), depth + 1)
                getattr(message, field.name).SetInParent()
            continue
        value = _random_scalar(chance, field)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


def _random_scalar(chance: Chance, field: Any) -> Any:
    if field.type == field.TYPE_STRING:
        names = [
            *THERE.values(),
            "projects/local-project",
            f"projects/local-project/locations/{THERE['zone']}",
        ]
        text = chance.choice((*names, *ODD_TEXTS))
        return text.replace("\ud800", "?")
    if field.type == field.TYPE_BYTES:
        return chance.randbytes(chance.choice((0, 3, 1000)))
    if field.type == field.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return chance.choice((0.0, -1.5, 1e30, float("nan"), float("inf")))
    if field.type in (field.TYPE_UINT32, field.TYPE_UINT64):
        return chance.choice((0, 1, 2**31))
    return chance.choice((0, 1, -1, 2**31 - 1, -(2**31)))
