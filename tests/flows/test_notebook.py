"""JupyterLab on a machine of the local cloud, used as a browser would."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.forked_cli import run_tpuctl
from tests.support.polling import async_until
from tests.support.terminal import Terminal
from tpuctl.api import Tpuctl

pytestmark = [pytest.mark.long, pytest.mark.soak, pytest.mark.timeout(1200)]

URL = re.compile(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\w+)")
# Ends once a file exists; prints a value that an earlier cell assigned.
UNTIL_FILE = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.5)
print(kept + 1)
"""
NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


class Browser:
    """Uses the REST API and the WebSockets of a Jupyter server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        match = URL.search(url)
        assert match is not None, url
        self.root = f"127.0.0.1:{match[1]}/api"
        self.headers = {"Authorization": f"token {match[2]}"}
        self.session = session

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        url = f"http://{self.root}/{path}"
        async with self.session.request(method, url, json=body, headers=self.headers) as response:
            assert response.status < 300, await response.text()
            return await response.json() if response.status != 204 else None

    async def run(self, kernel: str, code: str) -> str:
        """Run code in a kernel; its output, once it has ended."""
        url = f"ws://{self.root}/kernels/{kernel}/channels"
        message_id = uuid.uuid4().hex
        header = {"msg_id": message_id, "msg_type": "execute_request", "version": "5.3"}
        header |= {"username": "", "session": uuid.uuid4().hex, "date": ""}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        request = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        output = ""
        async with self.session.ws_connect(url, headers=self.headers) as channels:
            await channels.send_json({**request, "channel": "shell", "buffers": []})
            async for message in channels:
                reply = json.loads(message.data)
                if reply["parent_header"].get("msg_id") != message_id:
                    continue
                if reply["msg_type"] in ("stream", "error"):
                    output += reply["content"].get("text") or str(reply["content"])
                if reply["content"].get("execution_state") == "idle":
                    return output
        raise AssertionError(f"the kernel's connection ended: {output}")


def without_browser() -> dict[str, str]:
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def check_commands(folder: Path, browser: Browser) -> None:
    """While a notebook is open: a port that is in use, and what `status` says."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run_tpuctl("notebook", "--no-browser", "--port", str(port), folder=folder)
    assert done.returncode == 2
    assert "--port" in done.stderr
    assert f"port {port} of this machine is in use" in done.stderr
    status = run_tpuctl("status", folder=folder).stdout
    assert re.search(r"(?m)^notebook +\S+: running", status), status
    assert "tpuctl notebook" in status


async def saved_files(stack: Tpuctl) -> set[str]:
    prefix = f"tpuctl/notebooks/{stack.stack.name}/"
    return {item.name[len(prefix) :] for item in await stack.store.list(prefix)}


async def until_saved(stack: Tpuctl, name: str) -> None:
    async def probe() -> bool | None:
        return name in await saved_files(stack) or None

    await async_until(probe, f"{name} being saved")


async def until_ended(stack: Tpuctl) -> None:
    async def probe() -> bool | None:
        return (await stack.jobs())[0].status.exit_code is not None or None

    await async_until(probe, "the notebook's end")


@pytest.mark.usefixtures("startup_scripts")
async def test_notebook_is_served_saved_and_ended_when_idle(
    make_stack: Callable[..., Tpuctl], tmp_path: Path
) -> None:
    stack = make_stack(extra="limits: {idle: null}\n")
    await stack.up()
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("six\n", "utf-8")
    (folder / "helper.py").write_text("NAME = 'the helper'\n", "utf-8")
    (folder / "first.ipynb").write_text(json.dumps(NOTEBOOK), "utf-8")
    shutil.copy(stack.stack_file, folder / "tpuctl.yaml")

    async with aiohttp.ClientSession() as session:
        with Terminal(folder, "notebook", environment=without_browser()) as terminal:
            await asyncio.to_thread(terminal.wait_for, "to disconnect", 600.0)
            assert "No browser was found" in terminal.output
            browser = Browser(session, terminal.output)
            kernel = (await browser.call("POST", "kernels", {"name": "python3"}))["id"]
            code = "import six, helper; print(helper.NAME); kept = 41"
            assert await browser.run(kernel, code) == "the helper\n"
            names = {each["name"] for each in (await browser.call("GET", "contents"))["content"]}
            assert names == {"first.ipynb"}
            document = {"type": "notebook", "content": NOTEBOOK}
            await browser.call("PUT", "contents/made.ipynb", document)
            terminal.press_ctrl_c()
            assert await asyncio.to_thread(terminal.end) == 0
            assert "The notebook goes on" in terminal.output

        # From here on the machine deletes itself if it is idle for 6 seconds.
        limited = make_stack(name=stack.stack.name, extra="limits: {idle: 6s}\n")
        shutil.copy(limited.stack_file, folder / "tpuctl.yaml")
        with Terminal(folder, "notebook", "--no-browser") as terminal:
            await asyncio.to_thread(terminal.wait_for, "to disconnect")
            browser = Browser(session, terminal.output)
            running = asyncio.ensure_future(browser.run(kernel, UNTIL_FILE))
            await asyncio.to_thread(check_commands, folder, browser)
            await limited.up()
            await until_saved(stack, "made.ipynb")
            await asyncio.sleep(12)
            document = {"type": "file", "format": "text", "content": ""}
            await browser.call("PUT", "contents/go", document)
            assert await running == "42\n", "a busy kernel keeps the machine, and its values"
            # The browser and the forwarded port stay open.
            await asyncio.to_thread(terminal.wait_for, "The TPU is gone")
            assert await asyncio.to_thread(terminal.end) == 1
        assert "tpuctl/notebooks" in terminal.output

    # What was saved is there again on a new machine.
    await stack.up()
    async with stack.notebook(folder) as notebook, aiohttp.ClientSession() as session:
        browser = Browser(session, notebook.url)
        names = {each["name"] for each in (await browser.call("GET", "contents"))["content"]}
        assert {"first.ipynb", "made.ipynb"} <= names
        await browser.call("DELETE", "contents/first.ipynb")
        done = await asyncio.to_thread(run_tpuctl, "stop", notebook.job, folder=folder)
        assert done.returncode == 0, done.stderr
        await until_ended(stack)
        assert "made.ipynb" in await saved_files(stack)
        assert "first.ipynb" not in await saved_files(stack)
    assert (await stack.down(delete_bucket=True)).leaks == ()
