"""A script until its first step: its messages, its exit, and the end of all its processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.polling import async_until
from tests.support.processes import await_end
from tpuctl.errors import OperationFailed, Refused, TpuctlError, Usage
from tpuctl.flows.preflight.compile import compile_script
from tpuctl.model.events import Event
from tpuctl.preflight.compile.compilation import CompileRequest, compile_step, settings_of
from tpuctl.preflight.compile.compile_report import CompileReport
from tpuctl.preflight.compile.protocol import Compiler, Disconnected
from tpuctl.preflight.rehearsal.script_process import Command

WANTED = CompileRequest("train.py", "v3-8", "v3", 8, "2.18.0")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with TemporaryDirectory(prefix="tpuctl-test-") as name:
        yield Path(name)


def ignore_event(_: Event) -> None:
    pass


async def compiled(folder: Path, text: str) -> CompileReport:
    script = folder / "train.py"
    script.write_text(text, "utf-8")
    settings = folder / "settings.json"
    settings.write_text(json.dumps(settings_of(WANTED, folder, script, folder, "vm")), "utf-8")
    environment = {"PATH": os.environ["PATH"], "TPUCTL_REHEARSAL": str(settings)}
    command = Command((sys.executable, str(script)), folder, environment)
    no_compiler = (sys.executable, "-c", "raise SystemExit('not called')")
    return await compile_step(WANTED, command, no_compiler, folder, ignore_event)


async def test_script_failure_before_step_shows_log_tail(
    folder: Path,
) -> None:
    with pytest.raises(OperationFailed, match="Script ended before its first step") as caught:
        await compiled(folder, "print('reading'); raise SystemExit('no data there')")
    assert "no data there" in caught.value.diagnostics[0].detail
    assert "it exited with code 1" in caught.value.diagnostics[0].detail


async def test_script_without_step_gets_hint(folder: Path) -> None:
    with pytest.raises(Refused, match="No training step was found") as caught:
        await compiled(folder, "print('done')")
    assert "strategy.run" in caught.value.diagnostics[0].hint


async def test_ctrl_c_stops_script_and_children(folder: Path) -> None:
    text = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(folder / "pids.part")!r}, "w").write(f"{{__import__('os').getpid()}} {{child.pid}}")
__import__("os").rename({str(folder / "pids.part")!r}, {str(folder / "pids")!r})
time.sleep(600)
"""
    under_way = asyncio.ensure_future(compiled(folder, text))

    def has_begun() -> bool:
        assert not under_way.done()
        return (folder / "pids").exists()

    await async_until(has_begun, "the start of the compilation")
    under_way.cancel()
    with suppress(asyncio.CancelledError):
        await under_way
    for process in map(int, (folder / "pids").read_text().split()):
        await_end(process)


async def test_killed_compiler_reports_signal(folder: Path) -> None:
    program = "import os, signal; input(); os.kill(os.getpid(), signal.SIGKILL)"
    tpu = Compiler((sys.executable, "-c", program), {}, folder / "log")
    with pytest.raises(Disconnected, match="signal 9"):
        await tpu.query(generation="v3")


async def test_compiler_answers_successive_queries(folder: Path) -> None:
    program = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    tpu = Compiler((sys.executable, "-c", program), {}, folder / "log")
    try:
        assert await tpu.query(generation="v3") == {"generation": "v3"}
        assert await tpu.query(generation="v2", batch=8) == {"generation": "v2", "batch": 8}
    finally:
        await tpu.stop()


TORCH = "PyTorch is not supported by --compile"


@pytest.mark.parametrize(
    ("text", "type_name", "batch", "kind", "summary"),
    [
        ("print()", None, None, Usage, "No TPU type to compile for"),
        ("print()", "v3-9", None, Usage, "Unknown TPU type"),
        ("print()", "v3-8", 12, Usage, "Invalid batch size"),
        ("print()", "v3-8", 0, Usage, "Invalid batch size"),
        ("print()", "v3-8", -8, Usage, "Invalid batch size"),
        ("import tensorflow", "tpu7x-8", None, Refused, "TensorFlow does not support this TPU"),
        ("import jax", "v4-384", None, Refused, "Topology of the TPU type unknown"),
        ("import jax", "tpu8t-16", None, Refused, "TPU is not sold yet"),
        ("import torch", "v5litepod-4", None, Refused, TORCH),
        ("import torch_xla\nimport torch", "v5litepod-4", None, Refused, TORCH),
    ],
)
async def test_what_cannot_be_compiled_is_refused_before_install(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    type_name: str | None,
    batch: int | None,
    kind: type[TpuctlError],
    summary: str,
) -> None:
    monkeypatch.setenv("TPUCTL_IMAGE_CACHE", str(tmp_path / "cache"))
    script = tmp_path / "train.py"
    script.write_text(text, "utf-8")
    with pytest.raises(kind, match=summary) as caught:
        await compile_script(script, (), None, ignore_event, type_name=type_name, batch=batch)
    if summary == TORCH:
        assert "tpuctl rehearse SCRIPT" in caught.value.diagnostics[0].hint
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("type_name", "topology", "hosts", "slices", "options"),
    [
        ("v5p", "1x1x1", 1, 1, {"chips_per_host_bounds": [1, 1, 1]}),  # ct5p-hightpu-1t-tpu
        ("v5p", "2x1x1", 1, 1, {"chips_per_host_bounds": [2, 1, 1]}),  # ct5p-hightpu-2t-tpu
        ("v6e", "2x4", 1, 1, {"chips_per_host_bounds": [2, 4, 1]}),  # ct6e-standard-8t
        ("v6e", "4x4", 4, 2, {"chips_per_host_bounds": [2, 2, 1], "num_slices": 2}),
        ("tpu7x", "2x2x1", 1, 1, {"chips_per_host_bounds": [2, 2, 1]}),
    ],
)
def test_topology_has_the_hosts_of_the_machine_type(
    folder: Path, type_name: str, topology: str, hosts: int, slices: int, options: dict[str, Any]
) -> None:
    request = CompileRequest(
        *("train.py", type_name, type_name, 8, None),
        is_jax=True,
        topology=topology,
        hosts=hosts,
        slices=slices,
    )
    settings = settings_of(request, folder, folder, folder, "vm")
    expected = {"topology_name": f"{type_name}:{topology}", **options}
    assert settings["compile"]["topology"] == expected
