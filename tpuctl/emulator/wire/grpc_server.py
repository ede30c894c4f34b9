"""The gRPC server, on a Unix socket behind the protocol switch; started by the first call."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from typing import Any

from tpuctl.emulator.faults.traffic import Caller, ConnectionCut
from tpuctl.emulator.iam.tokens import AccessTokens
from tpuctl.emulator.state.errors import ApiError, internal
from tpuctl.emulator.wire.routes import Router
from tpuctl.emulator.wire.transcript import Transcript

log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class RpcServer:
    """Serves every method of the router over gRPC."""

    def __init__(
        self, router: Router, access: AccessTokens, transcript: Transcript | None = None
    ) -> None:
        self._router = router
        self._access = access
        self._transcript = transcript
        self._folder = ""
        self._server: Any = None
        self._lock = asyncio.Lock()
        self.calls = 0

    async def open(self) -> str:
        """Start to listen on the first call; returns the socket's path."""
        async with self._lock:
            if self._server is None:
                await self._listen()
        return f"{self._folder}/rpc"

    async def _listen(self) -> None:
        import grpc

        # In a temporary folder: socket paths are limited to about 100 bytes.
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
                ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
            ],
        )
        server.add_insecure_port(f"unix:{self._folder}/rpc")
        await server.start()
        self._server = server

    async def _answer(self, method: str, data: bytes, context: Any) -> bytes:
        import grpc

        self.calls += 1
        metadata = dict(context.invocation_metadata())
        header = metadata.get("authorization")
        answer, error_response = b"", None
        try:
            email = self._access.require(header)
            token = (header or "").partition(" ")[2].strip()
            user_project = metadata.get("x-goog-user-project", "")
            caller = Caller(email, scopes=self._access.scopes(token), user_project=user_project)
            answer = await self._router.call_grpc(method, data, caller)
        except ApiError as error:
            error_response = error
        except ConnectionCut:
            # As for a closed connection, without closing it: other calls share it.
            error_response = ApiError("UNAVAILABLE", "Socket closed")
        except Exception as error:
            log.exception("%s failed", method)
            error_response = internal(error)
        if self._transcript is not None:
            token = (header or "").partition(" ")[2]
            status = error_response.number if error_response else 0
            headers = {str(name): str(value) for name, value in context.invocation_metadata() or ()}
            self._transcript.add_rpc(token, method, data, status, answer, headers)
        if error_response is None:
            return answer
        code = next(code for code in grpc.StatusCode if code.value[0] == error_response.number)
        await context.abort(code, error_response.message, error_response.as_trailers())
        raise AssertionError("abort always raises")

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=1.0)
            self._server = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
