"""The project and the account that every local cloud has."""

from __future__ import annotations

OWNER = "owner@local-cloud.invalid"  # the holder of the token in the state folder
DEFAULT_PROJECT = "local-project"
