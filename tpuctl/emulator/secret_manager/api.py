"""Secret Manager, as the core knows it."""

from __future__ import annotations

from tpuctl.emulator.secret_manager.access import ACCESS
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

__all__ = ["API"]

API = GoogleApi(
    access=ACCESS,
    services={"secrets": "tpuctl.emulator.secret_manager.service:SecretsService"},
    surfaces=(
        Surface(
            "google.cloud.secretmanager.v1.SecretManagerService",
            "",
            "SecretManagerService",
            "secrets",
            r"/v1/projects/[^/]+/secrets",
            api=ACCESS.host,
            definition="tpuctl.emulator.secret_manager.messages",
        ),
    ),
)
