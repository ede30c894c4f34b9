"""HTTP rules of methods whose official Python client speaks gRPC only, and so brings none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["Options", "delete", "get", "option", "post"]

# By method: as a client's own `_get_http_options` has them.
Options = Mapping[str, Sequence[Mapping[str, str]]]


def option(verb: str, uri: str, body: str = "") -> dict[str, str]:
    """One way to say a method in HTTP, as a client's own transport has it."""
    return {"method": verb, "uri": uri, **({"body": body} if body else {})}


def get(uri: str) -> list[dict[str, str]]:
    return [option("get", uri)]


def post(uri: str, body: str = "*") -> list[dict[str, str]]:
    return [option("post", uri, body)]


def delete(uri: str) -> list[dict[str, str]]:
    return [option("delete", uri)]
