"""The metadata server of one machine, on the machine's address.

It answers only programs of the local cloud's user: its answers include the account's token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
from collections.abc import Awaitable, Callable
from html import escape
from typing import TypeAlias

from aiohttp import web

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.machines.network.peers import is_other_user
from tpuctl.emulator.machines.servers.metadata_tree import Tree

Value: TypeAlias = "Tree | str | int | list[str]"

ROOT = "/computeMetadata/v1"
USER_KEYED = ("attributes", "service-accounts")  # keys that users choose
TOKEN_SECONDS = 3600
MAX_WAIT_SECONDS = 3600.0


class MetadataServer:
    """Serves `tree()`, called for each request; `notify_changed` wakes waiting requests."""

    def __init__(
        self,
        tree: Callable[[], Tree],
        token: Callable[[], str],
        identify: Callable[[str, bool], Awaitable[str]],
        store_attribute: Callable[[str, str, str | None], None],
    ) -> None:
        """`identify(audience, is_full)` signs an identity token.

        `store_attribute(namespace, key, value)` stores a guest attribute; None deletes it.
        """
        self._tree = tree
        self._token = token
        self._identify = identify
        self._store_attribute = store_attribute
        self._change = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None

    async def open(self, address: str, port: int) -> None:
        """Listen; raises MachineError if the port is in use."""
        self._web = web.Server(self._answer, access_log=None)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._web, address, port, reuse_address=True
            )
        except OSError as problem:
            raise MachineError(
                f"The metadata server cannot listen on {address} port {port}: "
                f"{problem.strerror or problem}"
            ) from problem

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        web, self._server, self._web = self._web, None, None
        if web is not None:
            self._change.set()  # wake waiting requests: they see that the server is closed
            await web.shutdown(0.2)

    def notify_changed(self) -> None:
        """Report that the tree has changed."""
        self._change.set()
        self._change = asyncio.Event()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is None or is_other_user(request.transport):
            response = _forbidden(request.path, "Other users of this computer are not allowed.")
        else:
            response = await self._route(request)
        response.headers["Metadata-Flavor"] = "Google"
        response.headers["Server"] = "Metadata Server for VM"
        return response

    async def _route(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        if path in ("/", "/computeMetadata", "/computeMetadata/"):
            return web.Response(text="computeMetadata/\n" if path == "/" else "v1/\n")
        if path != ROOT and not path.startswith(ROOT + "/"):
            return _not_found(path)
        if request.headers.get("Metadata-Flavor") != "Google":
            return _forbidden(path, "Missing Metadata-Flavor:Google header.")
        if "X-Forwarded-For" in request.headers:
            return _forbidden(path, "Forwarded requests are not allowed.")
        if not _is_metadata_host(request.host):
            return _forbidden(path, "Requests to other hosts are not allowed.")
        names = [name for name in path[len(ROOT) :].split("/") if name]
        if names[:2] == ["instance", "guest-attributes"] and request.method in ("PUT", "DELETE"):
            return await self._store(request, names[2:])
        if request.method not in ("GET", "HEAD"):
            return _error(405, "Method not allowed")
        if names[:2] == ["instance", "service-accounts"] and names[3:] == ["token"]:
            return self._token_response(path, names[2])
        if names[:2] == ["instance", "service-accounts"] and names[3:] == ["identity"]:
            return await self._identity_response(request, names[2])
        return await self._read(request, names)

    async def _store(self, request: web.BaseRequest, names: list[str]) -> web.Response:
        if len(names) != 2:
            return _error(400, "Guest attributes must be named NAMESPACE/KEY")
        value = await request.text() if request.method == "PUT" else None
        self._store_attribute(names[0], names[1], value)
        self.notify_changed()
        return web.Response(text="")

    def _token_response(self, path: str, account: str) -> web.Response:
        if self._account(account) is None:
            return _not_found(path)
        answer = {
            "access_token": self._token(),
            "expires_in": TOKEN_SECONDS,
            "token_type": "Bearer",
        }
        return web.json_response(answer)

    async def _identity_response(self, request: web.BaseRequest, account: str) -> web.Response:
        """A signed identity token of this machine for the requested audience."""
        if self._account(account) is None:
            return _not_found(request.path)
        audience = request.query.get("audience", "")
        if not audience:
            # As in the metadata server of salrashid123/gce_metadata_server.
            return _error(400, "non-empty audience parameter required")
        is_full = request.query.get("format", "").lower() == "full"
        return web.Response(text=await self._identify(audience, is_full), content_type="text/html")

    def _account(self, name: str) -> Value | None:
        return _find(self._tree(), ["instance", "service-accounts", name])

    async def _read(self, request: web.BaseRequest, names: list[str]) -> web.Response:
        query = request.query
        recursive = query.get("recursive", "").lower() == "true"
        value, tag = self._lookup(names)
        if query.get("wait_for_change", "").lower() == "true":
            last_tag = query.get("last_etag", tag)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_seconds(query.get("timeout_sec"))):
                    while tag == last_tag and self._web is not None:
                        change = self._change
                        await change.wait()
                        value, tag = self._lookup(names)
        if value is None:
            return _not_found(request.path)
        if isinstance(value, dict) and not recursive and not request.path.endswith("/"):
            return web.Response(status=301, headers={"Location": request.path + "/"})
        headers = {"ETag": tag}
        as_json = query.get("alt") == "json" or (recursive and query.get("alt") != "text")
        if as_json and (recursive or not isinstance(value, dict)):
            document = _for_json(value, "" if not names else names[-1])
            return web.json_response(document, headers=headers)
        text = "\n".join(_lines(value, recursive))
        return web.Response(
            text=text + "\n" if isinstance(value, dict | list) else text,
            content_type="application/text",
            headers=headers,
        )

    def _lookup(self, names: list[str]) -> tuple[Value | None, str]:
        value = _find(self._tree(), names)
        content = json.dumps(value, sort_keys=True).encode()
        return value, hashlib.sha256(content).hexdigest()[:16]


def _is_metadata_host(host: str) -> bool:
    """Whether the Host header is one that a machine's programs use.

    Protects against DNS rebinding: a web page in a browser could otherwise read a token.
    """
    name = host.lower().rpartition(":")[0] or host.lower()
    if name in ("metadata.google.internal", "metadata", "localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _find(tree: Value, names: list[str]) -> Value | None:
    value: Value = tree
    for name in names:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def _for_json(value: Value, name: str) -> object:
    """As in recursive answers: names in camelCase, numbered folders as lists."""
    if not isinstance(value, dict) or name == "guest-attributes":
        return value
    if value and all(key.isdigit() for key in value):
        return [_for_json(value[key], "") for key in sorted(value, key=int)]
    if name in USER_KEYED:
        return {key: _for_json(child, "") for key, child in value.items()}
    return {_camel_case(key): _for_json(child, key) for key, child in value.items()}


def _camel_case(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(part.capitalize() for part in rest)


def _lines(value: Value, recursive: bool) -> list[str]:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return [str(value)]
    if not recursive:
        return [name + ("/" if isinstance(child, dict) else "") for name, child in value.items()]
    lines = []
    for name, child in value.items():
        separator = "/" if isinstance(child, dict) else " "
        lines += [f"{name}{separator}{line}" for line in _lines(child, recursive=True)]
    return lines


def _seconds(text: str | None) -> float:
    try:
        return min(float(text or MAX_WAIT_SECONDS), MAX_WAIT_SECONDS)
    except ValueError:
        return MAX_WAIT_SECONDS


def _not_found(path: str) -> web.Response:
    return _page(
        404,
        "Not Found",
        f"The requested URL <code>{escape(path)}</code> was not found on this server.",
    )


def _forbidden(path: str, reason: str) -> web.Response:
    """Google's message, as shown in its lab on hardening default GKE clusters."""
    return _page(
        403,
        "Forbidden",
        "Your client does not have permission to get URL "
        f"<code>{escape(path)}</code> from this server. {reason}",
    )


def _page(status: int, title: str, text: str) -> web.Response:
    """Errors are HTML pages."""
    return web.Response(
        status=status,
        text=(
            f"<!DOCTYPE html>\n<html lang=en>\n<title>Error {status} ({title})!!1</title>\n"
            f"<p><b>{status}.</b> <ins>That\u2019s an error.</ins>\n<p>{text}\n"
        ),
        content_type="text/html",
        charset="UTF-8",
    )


def _error(status: int, reason: str) -> web.Response:
    return web.Response(status=status, text=f"{reason}\n")
