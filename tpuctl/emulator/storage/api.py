"""Cloud Storage, as the core knows it: it answers HTTP itself."""

from __future__ import annotations

from tpuctl.emulator.storage.access import ACCESS
from tpuctl.emulator.wire.google_api import GoogleApi

__all__ = ["API"]

API = GoogleApi(
    access=ACCESS,
    services={"storage": "tpuctl.emulator.storage.service:StorageService"},
)
