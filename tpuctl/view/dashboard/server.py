"""The dashboard's HTTP server: three static files, and one JSON document that needs the token.

A page of another site can make a browser send requests to this machine. It cannot read the
document: it does not know the token, which is in the printed URL only, and names that it lets
point to this machine are refused.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from aiohttp import web

from tpuctl.local_ports import LOOPBACK

FILES = {
    "/": ("dashboard/dashboard.html", "text/html"),
    "/dashboard.js": ("dashboard/dashboard.js", "text/javascript"),
    "/dashboard.css": ("dashboard/dashboard.css", "text/css"),
    "/report.css": ("jobs/report.css", "text/css"),
}
HOSTS = (LOOPBACK, "localhost")  # any port, which SSH may forward
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
Load = Callable[[str], Awaitable[Mapping[str, Any]]]


@asynccontextmanager
async def serve_dashboard(listener: socket.socket, load: Load) -> AsyncIterator[str]:
    """Serve on the socket while in the block; yields the URL, with a new token.

    `load` returns the document for a job id, which may be empty or unknown.
    """
    token = secrets.token_urlsafe(24)

    async def answer_state(request: web.Request) -> web.Response:
        authorization = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(authorization, f"Bearer {token}".encode()):
            problem = "Not signed in. Open the URL that tpuctl dashboard printed."
            return web.json_response({"problem": problem}, status=403)
        return web.json_response(await load(request.query.get("job", "")))

    app = web.Application(middlewares=[_refuse_foreign_hosts])
    app.on_response_prepare.append(_set_headers)
    app.router.add_get("/state", answer_state, allow_head=False)
    for path in FILES:
        app.router.add_get(path, _answer_file, allow_head=False)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        port = listener.getsockname()[1]
        yield f"http://{LOOPBACK}:{port}/#token={token}"
    finally:
        await runner.cleanup()


@web.middleware
async def _refuse_foreign_hosts(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if request.host.partition(":")[0] not in HOSTS:
        raise web.HTTPForbidden(text="This host name is not served.\n")
    return await handler(request)


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


async def _answer_file(request: web.Request) -> web.Response:
    name, content_type = FILES[request.path]
    data = resources.files("tpuctl.view").joinpath(name).read_bytes()
    return web.Response(body=data, content_type=content_type, charset="utf-8")
