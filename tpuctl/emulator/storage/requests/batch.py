"""Batch requests of the JSON API."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from tpuctl.emulator.state.errors import missing
from tpuctl.emulator.storage.requests.primitives import Answer, Call, NotModified, split_path
from tpuctl.emulator.wire import batch
from tpuctl.emulator.wire.http_request import Request
from tpuctl.emulator.wire.routes import NoSuchPath


async def answer_batch(
    request: Request, answer: Callable[[Call], Awaitable[Answer]]
) -> web.StreamResponse:
    """Answer each part; a failed part does not affect the others."""

    async def answer_part(part: batch.Part) -> tuple[int, str]:
        call = Call(
            verb=part.verb,
            parts=split_path(part.path.removeprefix("/storage/v1").removeprefix("/")),
            query=part.query,
            body=part.body,
            base_url=request.base_url,
            caller=request.caller,
            headers=part.headers,
        )
        try:
            result = await answer(call)
        except NotModified:
            return 304, ""
        except NoSuchPath:
            raise missing("Not Found") from None
        return result.status, "" if result.value is None else json.dumps(result.value)

    header = request.raw.headers.get("Content-Type", "")
    return await batch.answer_batch(header, await request.read(), request.prefix, answer_part)
