"""The killable server; loaded in the process that servers are forked from."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from tests.support.null_host import NullHost
from tpuctl.emulator.server import Server
from tpuctl.google_imports import compute_service

# Preload what the first requests import.
for _name in (
    "tpu.v2",
    "resource_manager.projects",
    "service_usage.services",
    "iam_admin.service",
    "compute.service",
):
    importlib.import_module(f"tpuctl.emulator.{_name}")
for _name in ("disks", "firewalls", "instances", "zone_operations", "global_operations"):
    compute_service(_name)

_FILE_EVENTS = ("open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.truncate")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_READING = ("BEGIN", "SELECT")


def serve(home: Path, pace: str, kill_at: int, moments: Any, pipe: Any) -> None:
    _count(home, kill_at, moments)
    asyncio.run(_run(home, pace, pipe))


async def _run(home: Path, pace: str, pipe: Any) -> None:
    server = Server(home, NullHost, pace=pace)
    await server.start()
    pipe.send((server.port, server.token))
    await server.stopping.wait()


def _count(home: Path, kill_at: int, moments: Any) -> None:
    def count_point() -> None:
        moments.value += 1
        if moments.value == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
        reads = event == "open" and not arguments[2] & _WRITING
        if event in _FILE_EVENTS and not reads and str(arguments[0]).startswith(str(home)):
            count_point()

    def connect(*arguments: Any, **more: Any) -> sqlite3.Connection:
        connection = plain_connect(*arguments, **more)

        def on_statement(text: str) -> None:
            # Within a transaction, only its end has a lasting effect.
            word = text.split(maxsplit=1)[0]
            if word == "COMMIT" or not (connection.in_transaction or word in _READING):
                count_point()

        connection.set_trace_callback(on_statement)
        return connection

    plain_connect = sqlite3.connect
    sqlite3.connect = connect  # type: ignore[assignment]

    moments.value = 0
    sys.addaudithook(on_audit_event)  # for as long as the process lives
