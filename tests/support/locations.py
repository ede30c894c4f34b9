"""The default project and zones of tests: the local cloud's own project."""

from __future__ import annotations

PROJECT = "local-project"
PROJECT_NAME = f"projects/{PROJECT}"
REGION = "europe-west4"
ZONE = "europe-west4-a"
PARENT = f"{PROJECT_NAME}/locations/{ZONE}"
# A zone with other TPU types.
US_ZONE = "us-central1-b"
US_PARENT = f"{PROJECT_NAME}/locations/{US_ZONE}"
# With TPUs that both APIs sell.
V6E_ZONE = "us-east5-b"
V5P_ZONE = "us-east5-a"
