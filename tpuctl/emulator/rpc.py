"""gRPC, on a socket of its own behind the front; started when the first call arrives."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from typing import Any

from tpuctl.emulator.access import Access
from tpuctl.emulator.routes import Router
from tpuctl.emulator.status import ApiError
from tpuctl.emulator.world import Caller

__all__ = ["RpcServer"]

log = logging.getLogger(__name__)

_LONGEST_MESSAGE = 64 * 1024 * 1024


class RpcServer:
    """Serves every method of the router over gRPC."""

    def __init__(self, router: Router, access: Access) -> None:
        self._router = router
        self._access = access
        self._folder = ""
        self._server: Any = None
        self._lock = asyncio.Lock()
        self.calls = 0

    async def open(self) -> str:
        """Listen, if not yet, and return the socket's path."""
        async with self._lock:
            if self._server is None:
                await self._listen()
        return f"{self._folder}/rpc"

    async def _listen(self) -> None:
        import grpc

        # A short path of its own: socket paths end at about 100 bytes, state folders may not.
        self._folder = tempfile.mkdtemp(prefix="tpuctl-")
        owner = self

        class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
            def service(self, details: Any) -> Any:
                async def answer(data: bytes, context: Any) -> bytes:
                    return await owner._answer(details.method, data, context)

                return grpc.unary_unary_rpc_method_handler(answer)

        server = grpc.aio.server(
            handlers=(Handler(),),
            options=[
                ("grpc.max_receive_message_length", _LONGEST_MESSAGE),
                ("grpc.max_send_message_length", _LONGEST_MESSAGE),
                ("grpc.so_reuseport", 0),
            ],
        )
        server.add_insecure_port(f"unix:{self._folder}/rpc")
        await server.start()
        self._server = server

    async def _answer(self, method: str, data: bytes, context: Any) -> bytes:
        import grpc

        self.calls += 1
        headers = dict(context.invocation_metadata())
        try:
            caller = Caller(self._access.require(headers.get("authorization")))
            return await self._router.call_grpc(method, data, caller)
        except ApiError as error:
            refusal = error
        except Exception as error:
            log.exception("%s failed", method)
            refusal = ApiError("INTERNAL", f"Internal error encountered: {error!r}")
        code = next(each for each in grpc.StatusCode if each.value[0] == refusal.number)
        await context.abort(code, refusal.message, refusal.as_trailers())
        raise AssertionError("abort always raises")

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=1.0)
            self._server = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
