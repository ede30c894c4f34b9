"""Encryption keys of disks and images. Content is not encrypted here."""

from __future__ import annotations

import base64
import hashlib

from tpuctl.emulator.compute.core.collection import Row
from tpuctl.emulator.compute.core.errors import bad_field


def shown_key(key: Row, field: str = "resource.diskEncryptionKey") -> Row:
    """An encryption key as responses show it: a customer's own key only by its hash.

    CustomerEncryptionKey.sha256: of the key itself, in base64.
    """
    resource = {name: value for name, value in key.items() if name != "rawKey"}
    if "rawKey" in key:
        try:
            digest = hashlib.sha256(base64.b64decode(key["rawKey"], validate=True)).digest()
        except ValueError:
            reason = "The key must be encoded in base64."
            raise bad_field(f"{field}.rawKey", "", reason) from None
        resource["sha256"] = base64.b64encode(digest).decode()
    return resource
