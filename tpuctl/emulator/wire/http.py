"""HTTP/1.1: authenticates a request, then dispatches it to storage, an API, or the control API."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from html import escape
from typing import Protocol
from urllib.parse import parse_qs

from aiohttp import web

from tpuctl.emulator.faults.http_exchange import TruncatedResponse
from tpuctl.emulator.faults.traffic import ConnectionCut
from tpuctl.emulator.iam.oauth import OAuthEndpoints
from tpuctl.emulator.iam.tokens import AccessTokens
from tpuctl.emulator.state.errors import ApiError, internal, invalid
from tpuctl.emulator.wire.batch import Part, answer_batch
from tpuctl.emulator.wire.discovery import documents
from tpuctl.emulator.wire.http_request import Request, json_response
from tpuctl.emulator.wire.iap.tunnels import ROOT, Tunnels
from tpuctl.emulator.wire.retry_tests import ROOT as RETRY_TESTS
from tpuctl.emulator.wire.routes import NoSuchPath, Router
from tpuctl.emulator.wire.transcript import Transcript
from tpuctl.local_cloud.api_folders import without_folder
from tpuctl.local_cloud.defaults import OWNER

log = logging.getLogger(__name__)

ControlHandler = Callable[[Request], Awaitable[web.StreamResponse]]


class StorageHandlers(Protocol):
    """Cloud Storage, which answers HTTP itself."""

    async def handle(self, request: Request) -> web.StreamResponse | None: ...

    async def handle_anonymous(self, request: Request) -> web.StreamResponse | None: ...


class HttpHandler:
    """Answers every HTTP/1.1 request."""

    def __init__(
        self,
        router: Router,
        access: AccessTokens,
        storage: StorageHandlers,
        control: ControlHandler,
        pages: OAuthEndpoints,
        tunnels: Tunnels,
        transcript: Transcript | None = None,
    ) -> None:
        self._router = router
        self._access = access
        self._storage = storage
        self._control = control
        self._pages = pages
        self._tunnels = tunnels
        self._transcript = transcript
        self.requests = 0

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        path, _, query_text = raw.raw_path.partition("?")
        if "://" in path.partition("?")[0][:8]:  # the absolute form, as sent to proxies
            path = "/" + path.split("://", 1)[1].partition("/")[2]
        request = Request(raw, raw.method, path or "/", {}, "")
        request.exchange.retry_test = raw.headers.get("x-retry-test-id", "")
        response = await self._respond(request, query_text)
        if self._transcript is not None and not request.is_secret:
            self._transcript.add_rest(request, query_text, response)
        return _truncate(request, response)

    async def _respond(self, request: Request, query_text: str) -> web.StreamResponse:
        raw, path = request.raw, request.path
        family = "platform"
        try:
            request.query = parse_qs(query_text, keep_blank_values=True, max_num_fields=1000)
            if (page := await self._pages.answer(raw, path)) is not None:
                request.is_secret = True
                return page
            self._strip_prefixes(request)
            if self._is_discovery(request):
                request.is_secret = True  # not an API call
                return json_response(
                    documents.answer(request.path, request.query, request.host, request.base_url)
                )
            family = self._router.family(request.path, request.param("alt"))
            if is_storage(request):
                family = "legacy"
            if not request.prefix and "Authorization" not in raw.headers:
                answer = await self._storage.handle_anonymous(request)
                if answer is not None:
                    return answer
            self._authenticate(request)
            return await self._answer(request)
        except ApiError as error:
            return _error_response(raw, error, family)
        except ConnectionCut:
            return _DroppedResponse(status=0)
        except NoSuchPath:
            return _no_such_path(raw, path)
        except (ConnectionError, ConnectionResetError):
            raise
        except web.RequestPayloadError as error:  # wrong encoding or length
            return _error_response(raw, invalid(f"Malformed request body: {error}"), family)
        except ValueError as error:
            log.exception("%s %s", raw.method, _without_token(path))
            return _error_response(raw, invalid(f"Malformed request: {error}"), family)
        except Exception as error:
            log.exception("%s %s failed", raw.method, _without_token(path))
            return _error_response(raw, internal(error), family)

    @classmethod
    def _strip_prefixes(cls, request: Request) -> None:
        while request.path.startswith("/t/"):  # a client may add it to a root that has one
            request.token, slash, rest = request.path.removeprefix("/t/").partition("/")
            request.prefix = f"/t/{request.token}"
            request.path = slash + rest if slash else "/"
        if not cls._is_xml_host(request):  # there it would be a bucket
            request.path = without_folder(request.path)

    def _authenticate(self, request: Request) -> None:
        if request.prefix:
            request.email = self._access.identify(request.token) or self._access.require(None)
            request.scopes = self._access.scopes(request.token)
            return
        header = request.raw.headers.get("Authorization")
        request.token = (header or "").partition(" ")[2].strip()
        try:
            request.email = self._access.require(header)
        except ApiError as error:
            if header and not error.details and is_storage(request):
                text, where = "Invalid Credentials", ("header", "Authorization")
                raise ApiError("UNAUTHENTICATED", text, location=where) from error
            raise
        request.scopes = self._access.scopes(request.token)

    async def _answer(self, request: Request) -> web.StreamResponse:
        is_retry_test = request.path.startswith(RETRY_TESTS) and not self._is_xml_host(request)
        if is_retry_test or request.path.startswith("/_local/"):
            if request.email != OWNER:
                raise ApiError("PERMISSION_DENIED", "This requires the local cloud's owner.")
            return await self._control(request)
        if request.path.startswith(ROOT):
            request.is_secret = True  # not a call with a response
            return await self._tunnels.answer(request)
        # Before the body is read: that of an object must not be loaded into memory.
        if not _API_PATHS.match(request.path) or self._is_xml_host(request):
            answer = await self._storage.handle(request)
            if answer is not None:
                return answer
        if request.path.startswith(_COMPUTE_BATCH):
            return await self._answer_batch(request)
        body = await request.read()
        verb = request.raw.headers.get("X-HTTP-Method-Override", request.verb).upper()
        query = request.query
        if "X-Goog-Api-Client" in request.raw.headers:  # official clients need no indentation
            query = {"prettyPrint": ["false"], **query}
        content = await self._router.call_rest(verb, request.path, query, body, request.caller)
        return web.Response(
            body=content, content_type="application/json", charset="UTF-8", headers=_COMMON_HEADERS
        )

    async def _answer_batch(self, request: Request) -> web.StreamResponse:
        """A batch of Compute Engine calls, as gcloud sends for several instances."""

        async def answer(part: Part) -> tuple[int, str]:
            try:
                content = await self._router.call_rest(
                    part.verb, part.path, part.query, part.body, request.caller
                )
            except NoSuchPath:
                raise ApiError("NOT_FOUND", f"{part.verb} {part.path} not found.") from None
            return 200, content.decode()

        header = request.raw.headers.get("Content-Type", "")
        return await answer_batch(header, await request.read(), request.prefix, answer)

    @classmethod
    def _is_discovery(cls, request: Request) -> bool:
        if request.verb != "GET" or not documents.is_discovery(request.path):
            return False
        # At storage's own host other paths name buckets, one of which may be `discovery`.
        return request.path.startswith(("/$", "/%24")) or not cls._is_xml_host(request)

    @staticmethod
    def _is_xml_host(request: Request) -> bool:
        host = request.host.partition(":")[0]
        return host == "storage.googleapis.com" or host.endswith(".storage.googleapis.com")


def _truncate(request: Request, response: web.StreamResponse) -> web.StreamResponse:
    """The response, or only its first bytes if a fault cuts it. Streams handle cuts themselves."""
    if isinstance(response, web.Response) and isinstance(response.body, bytes):
        limit = request.exchange.limit("response", len(response.body))
        if limit is not None and request.exchange.trigger("response"):
            return TruncatedResponse(response, limit)
    return response


class _DroppedResponse(web.StreamResponse):
    """Closes the connection without a response."""

    async def prepare(self, request: web.BaseRequest) -> None:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError


_COMMON_HEADERS = {"Cache-Control": "private", "Vary": "Origin, X-Origin, Referer"}
_COMPUTE_BATCH = "/batch/compute/"
# Paths that are never taken for objects, which are requested as `/BUCKET/OBJECT`.
_STORAGE_PROJECTS = r"projects/[^/]+/(?:hmacKeys|serviceAccount)(?:/|$)"
_API_PATHS = re.compile(
    rf"/(?!{_STORAGE_PROJECTS})(?:v\d+\w*|compute|projects|batch/compute)(?:/|$)"
)
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
    """Whether a path belongs to Cloud Storage's JSON API, in any of its forms."""
    path = request.path
    is_of_project = re.match(f"/{_STORAGE_PROJECTS}", path) is not None
    return path.startswith(_STORAGE_PATHS) or path == "/b" or is_of_project


def _error_response(raw: web.BaseRequest, error: ApiError, family: str) -> web.Response:
    headers = dict(_COMMON_HEADERS)
    if error.number == 16:
        headers["WWW-Authenticate"] = 'Bearer realm="https://accounts.google.com/"'
    body = _page(error.http, error.message) if error.is_page else error.as_json(family)
    response = web.Response(
        status=error.http,
        body=b"" if raw.method == "HEAD" else body,
        content_type="text/html" if error.is_page else "application/json",
        charset="UTF-8",
        headers=headers,
    )
    if not raw.content.is_eof():
        response.force_close()  # do not read the rest of the body
    return response


def _no_such_path(raw: web.BaseRequest, path: str) -> web.Response:
    """Google's front end answers an unknown path with an HTML page, not with JSON."""
    text = f"The requested URL <code>{escape(_without_token(path))}</code> was not found"
    return web.Response(
        status=404,
        body=_page(404, f"{text} on this server."),
        content_type="text/html",
        charset="UTF-8",
    )


def _page(status: int, text: str) -> bytes:
    """An error page as of Google's front end: googleapis/google-api-php-client#2421."""
    title = {404: "Not Found", 408: "Request Timeout"}.get(status, "Server Error")
    return (
        "<!DOCTYPE html>\n<html lang=en>\n  <meta charset=utf-8>\n"
        f"  <title>Error {status} ({title})!!1</title>\n  <p>{text}\n"
    ).encode()


def _without_token(path: str) -> str:
    """The path with its token removed, for logs and pages."""
    return re.sub(r"^/t/[^/]*", "/t/…", path)
