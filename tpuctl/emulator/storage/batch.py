"""Batch requests of the JSON API."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from aiohttp import web

from tpuctl.emulator.storage.primitives import Answer, Call, NotModified
from tpuctl.emulator.wire import batch
from tpuctl.emulator.wire.http_request import Request

__all__ = ["answer_batch"]


async def answer_batch(
    request: Request, answer: Callable[[Call], Awaitable[Answer]]
) -> web.StreamResponse:
    """Answer each part; a failed part does not affect the others."""

    async def answer_part(part: batch.Part) -> tuple[int, str]:
        parts = part.path.removeprefix("/storage/v1").strip("/").split("/")
        call = Call(
            verb=part.verb,
            parts=[unquote(segment) for segment in parts],
            query=part.query,
            body=part.body,
            base_url=request.base_url,
            caller=request.caller,
        )
        try:
            result = await answer(call)
        except NotModified:
            return 304, ""
        return result.status, "" if result.value is None else json.dumps(result.value)

    header = request.raw.headers.get("Content-Type", "")
    return await batch.answer_batch(header, await request.read(), request.prefix, answer_part)
