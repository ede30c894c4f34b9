"""Chromium without windows, controlled over its DevTools protocol.

chromedevtools.github.io/devtools-protocol: one WebSocket, so that tests need no driver.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.required_programs import skip_without

SECONDS = 60.0
OPTIONS = (
    *("--headless", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *(("--no-sandbox",) if os.geteuid() == 0 else ()),  # which root cannot have
)


class Page:
    """A page; `complaints` are the errors of its scripts, of its policy, and of requests."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, what it resolves to."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        try:
            async with asyncio.timeout(SECONDS):
                while not await self.evaluate(f"Boolean({condition})"):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            text = await self.evaluate("document.body.innerText")
            raise AssertionError(f"not true: {condition}\n{text}") from None

    async def load(self, url: str) -> None:
        for domain in ("Runtime", "Log", "Page"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(SECONDS):
            await self._loaded.wait()

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(SECONDS):
            return await answer

    async def receive(self) -> None:
        """Dispatch what the browser sends, until the connection ends."""
        async for message in self._socket:
            content = message.json()
            if "id" in content:
                answer = self._answers.pop(content["id"])
                if "error" in content:
                    answer.set_exception(AssertionError(content["error"]))
                else:
                    answer.set_result(content["result"])
            elif content["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif content["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(str(content["params"]))


@asynccontextmanager
async def open_page(url: str) -> AsyncIterator[Page]:
    """Open a page in a browser of its own; skips the test without Chromium."""
    skip_without("chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *("chromium", *OPTIONS, f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with aiohttp.ClientSession() as session:
                address = await _debugging_address(Path(profile) / "DevToolsActivePort")
                async with session.get(f"http://{address}/json/list") as response:
                    (target,) = [
                        entry for entry in await response.json() if entry["type"] == "page"
                    ]
                async with session.ws_connect(
                    target["webSocketDebuggerUrl"], max_msg_size=0
                ) as socket:
                    page = Page(socket)
                    receiver = asyncio.ensure_future(page.receive())
                    await page.load(url)
                    yield page
                    receiver.cancel()
        finally:
            process.terminate()
            await process.wait()


async def _debugging_address(file: Path) -> str:
    async with asyncio.timeout(SECONDS):
        while not (file.exists() and len(lines := file.read_text("utf-8").splitlines()) > 1):
            await asyncio.sleep(0.05)
    return f"127.0.0.1:{lines[0]}"
