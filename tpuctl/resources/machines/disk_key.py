"""The Cloud KMS key of disks, those of machines and those attached to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.model.stack.stack import Stack


def disk_encryption(stack: Stack) -> dict[str, Any]:
    """The field of a disk that is created, or of its attachment, for the stack's key."""
    key = stack.crypto_key
    return {} if key is None else {"disk_encryption_key": {"kms_key_name": key.name}}


def key_differences(stack: Stack, disk: Any, noun: str) -> Iterator[tuple[str, str, str]]:
    """Of a disk, as (field, actual, desired): its key cannot be changed."""
    key, actual = stack.crypto_key, disk.disk_encryption_key.kms_key_name
    if key is not None and not key.is_of(actual):
        yield f"{noun} key", actual or "of Google", key.name
