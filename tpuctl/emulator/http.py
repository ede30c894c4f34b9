"""HTTP/1.1: checks the token, then hands a request to storage, an API, or the control page."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import parse_qs

from aiohttp import web

from tpuctl.emulator.access import OWNER, Access
from tpuctl.emulator.routes import NoSuchPath, Router
from tpuctl.emulator.status import ApiError, invalid
from tpuctl.emulator.world import Caller

__all__ = ["HttpHandler", "Request"]

log = logging.getLogger(__name__)

_LARGEST_JSON = 32 * 1024 * 1024


@dataclass
class Request:
    """One HTTP request, its token prefix taken off."""

    raw: web.BaseRequest
    verb: str
    path: str  # still percent-encoded
    query: dict[str, list[str]]
    prefix: str  # "" or "/t/TOKEN": links in answers must carry it on
    email: str = ""

    def first(self, key: str, default: str = "") -> str:
        """The last value of a query parameter that stands once."""
        return self.query[key][-1] if self.query.get(key) else default

    @property
    def host(self) -> str:
        return str(self.raw.headers.get("Host", "")).lower()

    @property
    def base_url(self) -> str:
        """What links in the answer begin with, so that they lead the same way back."""
        scheme = "https" if self.raw.headers.get("X-Forwarded-Proto") == "https" else "http"
        return f"{scheme}://{self.raw.headers.get('Host', '127.0.0.1')}{self.prefix}"

    async def read(self, most: int = _LARGEST_JSON) -> bytes:
        """The whole body, of a size that may be held in memory."""
        await self.proceed()
        data = bytearray()
        async for chunk in self.raw.content.iter_any():
            data += chunk
            if len(data) > most:
                raise ApiError("INVALID_ARGUMENT", "Request payload size exceeds the limit.")
        return bytes(data)

    async def proceed(self) -> None:
        """Tell a client that waits for it to go on with the body."""
        if self.raw.headers.get("Expect", "").lower() == "100-continue":
            writer: Any = self.raw.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0


Local = Callable[[Request], Awaitable[web.StreamResponse]]


class HttpHandler:
    """Answers every HTTP/1.1 request of the front."""

    def __init__(
        self,
        router: Router,
        access: Access,
        storage: Callable[[Request], Awaitable[web.StreamResponse | None]],
        local: Local,
    ) -> None:
        self._router = router
        self._access = access
        self._storage = storage
        self._local = local
        self.requests = 0

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        path, _, query_text = raw.raw_path.partition("?")
        if "://" in path.partition("?")[0][:8]:  # the absolute form that proxies are sent
            path = "/" + path.split("://", 1)[1].partition("/")[2]
        family = "platform"
        try:
            query = parse_qs(query_text, keep_blank_values=True, max_num_fields=1000)
            request = Request(raw, raw.method, path or "/", query, "")
            family = "legacy" if is_storage(request) else self._router.family(path)
            self._authenticate(request)
            family = "legacy" if is_storage(request) else self._router.family(request.path)
            return await self._answer(request)
        except ApiError as error:
            return _refuse(raw, error, family)
        except NoSuchPath:
            return _no_such_path(raw, path)
        except (ConnectionError, ConnectionResetError):
            raise
        except ValueError as error:
            log.exception("%s %s", raw.method, _without_token(path))
            return _refuse(raw, invalid(f"Malformed request: {error}"), family)
        except Exception as error:
            log.exception("%s %s failed", raw.method, _without_token(path))
            return _refuse(raw, ApiError("INTERNAL", f"Internal error: {error!r}"), family)

    def _authenticate(self, request: Request) -> None:
        if request.path.startswith("/t/"):
            token, slash, rest = request.path.removeprefix("/t/").partition("/")
            email = self._access.identify(token)
            if email is None:
                request.email = self._access.require(None)
            request.prefix = f"/t/{token}"
            request.path = slash + rest if slash else "/"
            request.email = email or ""
            return
        request.email = self._access.require(request.raw.headers.get("Authorization"))

    async def _answer(self, request: Request) -> web.StreamResponse:
        if request.path.startswith("/_local/"):
            if request.email != OWNER:
                raise ApiError("PERMISSION_DENIED", "Only the local cloud's owner may do this.")
            return await self._local(request)
        if is_storage(request) or self._is_xml_host(request):
            answer = await self._storage(request)
            if answer is not None:
                return answer
        try:
            body = await request.read()
            caller = Caller(request.email)
            verb = request.raw.headers.get("X-HTTP-Method-Override", request.verb).upper()
            content = await self._router.call_rest(verb, request.path, request.query, body, caller)
        except NoSuchPath:
            answer = await self._storage(request)
            if answer is None:
                raise
            return answer
        return web.Response(
            body=content, content_type="application/json", charset="UTF-8", headers=_COMMON
        )

    @staticmethod
    def _is_xml_host(request: Request) -> bool:
        host = request.host.partition(":")[0]
        return host == "storage.googleapis.com" or host.endswith(".storage.googleapis.com")


_COMMON = {"Cache-Control": "private", "Vary": "Origin, X-Origin, Referer"}
_STORAGE_PATHS = (
    "/storage/v1/",
    "/upload/storage/v1/",
    "/resumable/upload/storage/v1/",
    "/download/storage/v1/",
    "/batch/storage/v1",
    "/b/",
    "/b?",
)


def is_storage(request: Request) -> bool:
    """Whether a path is one of the JSON API of Cloud Storage, in any of its spellings."""
    return request.path.startswith(_STORAGE_PATHS) or request.path == "/b"


def _refuse(raw: web.BaseRequest, error: ApiError, family: str) -> web.Response:
    headers = dict(_COMMON)
    if error.number == 16:
        headers["WWW-Authenticate"] = 'Bearer realm="https://accounts.google.com/"'
    response = web.Response(
        status=error.http,
        body=b"" if raw.method == "HEAD" else error.as_json(family),
        content_type="application/json",
        charset="UTF-8",
        headers=headers,
    )
    if not raw.content.is_eof():
        response.force_close()  # what is left of the body is not worth reading
    return response


def _no_such_path(raw: web.BaseRequest, path: str) -> web.Response:
    """Google's front end answers an unknown path with a page, not with JSON."""
    return web.Response(
        status=404,
        text=(
            "<!DOCTYPE html>\n<html lang=en><title>Error 404 (Not Found)!!1</title>\n"
            f"<p>The requested URL <code>{escape(_without_token(path))}</code> was not found "
            "on this server.\n"
        ),
        content_type="text/html",
        charset="UTF-8",
    )


def _without_token(path: str) -> str:
    """Tokens have no place in logs or pages."""
    return re.sub(r"^/t/[^/]*", "/t/…", path)


def json_response(value: Any, status: int = 200) -> web.Response:
    """An answer of the control page."""
    return web.Response(
        status=status, body=json.dumps(value).encode(), content_type="application/json"
    )
