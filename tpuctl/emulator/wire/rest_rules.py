"""HTTP rules of methods whose official Python client supports only gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# By method, in the format of a client's `_get_http_options`.
Options = Mapping[str, Sequence[Mapping[str, str]]]


def option(verb: str, uri: str, body: str = "") -> dict[str, str]:
    """One HTTP rule of a method, in the format of a client's transport."""
    return {"method": verb, "uri": uri, **({"body": body} if body else {})}


def get(uri: str) -> list[dict[str, str]]:
    return [option("get", uri)]


def post(uri: str, body: str = "*") -> list[dict[str, str]]:
    return [option("post", uri, body)]


def delete(uri: str) -> list[dict[str, str]]:
    return [option("delete", uri)]
