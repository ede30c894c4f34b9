"""The metadata server of one machine, on the machine's own address."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import TypeAlias

from aiohttp import web

from tpuctl.emulator.machine import MachineError
from tpuctl.emulator.machines.attributes import Tree

__all__ = ["MetadataServer"]

Value: TypeAlias = "Tree | str | int | list[str]"

ROOT = "/computeMetadata/v1"
FREE_NAMES = ("attributes", "service-accounts")  # keys that users choose
TOKEN_SECONDS = 3600
LONGEST_WAIT = 3600.0


class MetadataServer:
    """Answers from `tree()`, asked anew each time; `changed` wakes those who wait."""

    def __init__(
        self,
        tree: Callable[[], Tree],
        token: Callable[[], str],
        keep: Callable[[str, str, str | None], None],
    ) -> None:
        """`keep(namespace, key, value)` stores a guest attribute, None deletes it."""
        self._tree = tree
        self._token = token
        self._keep = keep
        self._change = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None

    async def open(self, address: str, port: int) -> None:
        """Listen; raises MachineError if somebody else does already."""
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
        if self._web is not None:
            self._change.set()
            await self._web.shutdown(0.2)
        self._server = self._web = None

    def changed(self) -> None:
        """Say that the tree is not what it was."""
        self._change.set()
        self._change = asyncio.Event()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._route(request)
        response.headers["Metadata-Flavor"] = "Google"
        response.headers["Server"] = "Metadata Server for VM"
        return response

    async def _route(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        if path in ("/", "/computeMetadata", "/computeMetadata/"):
            return web.Response(text="computeMetadata/\n" if path == "/" else "v1/\n")
        if path != ROOT and not path.startswith(ROOT + "/"):
            return _refusal(404, "Not found")
        if request.headers.get("Metadata-Flavor") != "Google":
            return _refusal(403, "Your client does not have permission: no Metadata-Flavor header")
        if "X-Forwarded-For" in request.headers:
            return _refusal(403, "Requests that were forwarded are refused")
        names = [name for name in path[len(ROOT) :].split("/") if name]
        if names[:2] == ["instance", "guest-attributes"] and request.method in ("PUT", "DELETE"):
            return await self._store(request, names[2:])
        if request.method not in ("GET", "HEAD"):
            return _refusal(405, "Method not allowed")
        if names[:2] == ["instance", "service-accounts"] and names[3:] == ["token"]:
            return self._hand_token(names[2])
        return await self._read(request, names)

    async def _store(self, request: web.BaseRequest, names: list[str]) -> web.Response:
        if len(names) != 2:
            return _refusal(400, "Guest attributes are written as NAMESPACE/KEY")
        value = await request.text() if request.method == "PUT" else None
        self._keep(names[0], names[1], value)
        self.changed()
        return web.Response(text="")

    def _hand_token(self, account: str) -> web.Response:
        if _find(self._tree(), ["instance", "service-accounts", account]) is None:
            return _refusal(404, "No such service account")
        answer = {
            "access_token": self._token(),
            "expires_in": TOKEN_SECONDS,
            "token_type": "Bearer",
        }
        return web.json_response(answer)

    async def _read(self, request: web.BaseRequest, names: list[str]) -> web.Response:
        query = request.query
        recursive = query.get("recursive", "").lower() == "true"
        value, tag = self._look(names)
        if query.get("wait_for_change", "").lower() == "true":
            seen = query.get("last_etag", tag)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_seconds(query.get("timeout_sec"))):
                    while tag == seen and self._web is not None:
                        change = self._change
                        await change.wait()
                        value, tag = self._look(names)
        if value is None:
            return _refusal(404, "Not found")
        if isinstance(value, dict) and not recursive and not request.path.endswith("/"):
            return web.Response(status=301, headers={"Location": request.path + "/"})
        headers = {"ETag": tag}
        as_json = query.get("alt") == "json" or (recursive and query.get("alt") != "text")
        if as_json and (recursive or not isinstance(value, dict)):
            named = _for_json(value, "" if not names else names[-1])
            return web.json_response(named, headers=headers)
        text = "\n".join(_lines(value, recursive))
        return web.Response(
            text=text + "\n" if isinstance(value, dict | list) else text,
            content_type="application/text",
            headers=headers,
        )

    def _look(self, names: list[str]) -> tuple[Value | None, str]:
        value = _find(self._tree(), names)
        content = json.dumps(value, sort_keys=True).encode()
        return value, hashlib.sha256(content).hexdigest()[:16]


def _find(tree: Value, names: list[str]) -> Value | None:
    found: Value = tree
    for name in names:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


def _for_json(value: Value, name: str) -> object:
    """As recursive answers have it: names in camelCase, numbered folders as lists."""
    if not isinstance(value, dict) or name == "guest-attributes":
        return value
    if value and all(key.isdigit() for key in value):
        return [_for_json(value[key], "") for key in sorted(value, key=int)]
    if name in FREE_NAMES:
        return {key: _for_json(child, "") for key, child in value.items()}
    return {_camel(key): _for_json(child, key) for key, child in value.items()}


def _camel(name: str) -> str:
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
        joint = "/" if isinstance(child, dict) else " "
        lines += [f"{name}{joint}{line}" for line in _lines(child, recursive=True)]
    return lines


def _seconds(text: str | None) -> float:
    try:
        return min(float(text or LONGEST_WAIT), LONGEST_WAIT)
    except ValueError:
        return LONGEST_WAIT


def _refusal(status: int, reason: str) -> web.Response:
    return web.Response(status=status, text=f"{reason}\n")
