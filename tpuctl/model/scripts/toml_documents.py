"""TOML that several readers of a job's files ask for, such as a lock of thousands of lines."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["parse_toml"]


@lru_cache(maxsize=8)
def parse_toml(text: str) -> dict[str, Any]:
    """A document that is only read. Raises TOMLDecodeError, which is a ValueError."""
    import tomllib  # many folders have no TOML

    return tomllib.loads(text)
