"""The shim's observations, read from its file."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from tpuctl.preflight.rehearsal.observations import (
    Checkpoint,
    Compiled,
    Ended,
    Failure,
    Operation,
    Refused,
    Shape,
    ShimFailed,
    Started,
    Step,
    Where,
    read,
)


def written(tmp_path: Path, *lines: dict[str, Any] | str, tail: str = "") -> Path:
    path = tmp_path / "observations.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts) + tail, "utf-8")
    return path


def test_incomplete_and_unknown_parts_are_ignored(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == []
    assert read(written(tmp_path)) == []
    step = {"kind": "step", "number": 1, "seconds": 0.5}
    path = written(tmp_path, step, tail='{"kind": "step", "num')
    assert read(path) == [Step(number=1, seconds=0.5)]
    path = written(tmp_path, step, tail=json.dumps({**step, "number": 2}))
    assert read(path) == [Step(number=1, seconds=0.5)]
    path = written(tmp_path, {"kind": "step", "number": 1, "seconds": 0.5, "color": "blue"})
    assert read(path) == [Step(number=1, seconds=0.5)]


def test_each_kind_of_observation_is_read(tmp_path: Path) -> None:
    where = {"file": "/job/train.py", "line": 7, "text": "x = f(x)"}
    path = written(
        tmp_path,
        {"kind": "started", "process": 5, "at": 2.5, "tensorflow": "2.18.0", "devices": ["CPU:0"]},
        {
            "kind": "compiled",
            "function": "step",
            "where": where,
            "seconds": 1.5,
            "shapes": [["float32", [8, None]], ["int32", []], ["variant", None]],
            "dynamic": 2,
            "peak": 1024,
        },
        {
            "kind": "refused",
            "function": "step",
            "where": None,
            "message": "no",
            "operations": [{"operation": "PyFunc", "where": where}, {"operation": "Unique"}],
        },
        {"kind": "checkpoint", "action": "saved", "path": "gs://b/c", "step": 3, "where": where},
        {
            "kind": "ended",
            "reason": "failed",
            "exit": 1,
            "error": {"type": "ValueError", "message": "bad", "where": where},
        },
    )
    line = Where(Path("/job/train.py"), 7, "x = f(x)")
    assert read(path) == [
        Started(process=5, at=2.5, tensorflow="2.18.0", devices=("CPU:0",)),
        Compiled(
            function="step",
            where=line,
            seconds=1.5,
            shapes=(Shape("float32", (8, None)), Shape("int32", ()), Shape("variant", None)),
            dynamic=2,
            peak=1024,
        ),
        Refused(
            function="step",
            message="no",
            operations=(Operation("PyFunc", line), Operation("Unique")),
        ),
        Checkpoint(action="saved", path="gs://b/c", step=3, where=line),
        Ended(reason="failed", exit=1, error=Failure("ValueError", "bad", line)),
    ]
    assert str(line) == "/job/train.py:7"
    assert [str(shape) for shape in read(path)[1].shapes] == [  # type: ignore[attr-defined]
        "float32[8,?]",
        "int32[]",
        "variant[...]",
    ]


def test_loss_may_be_nan(tmp_path: Path) -> None:
    path = written(tmp_path, '{"kind": "step", "number": 1, "seconds": 0.5, "loss": NaN}')
    [step] = read(path)
    assert isinstance(step, Step)
    assert step.loss is not None and math.isnan(step.loss)
    assert step.waited is None


def test_invalid_lines_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    step = {"kind": "step", "number": 1, "seconds": 0.5}
    bad = ["not JSON", "[1]", '{"kind": "unheard-of"}', '{"kind": "step"}', "{}"]
    bad.append('{"kind": "resolver", "where": {"line": 3}}')
    bad.append('{"kind": "compiled", "function": "f", "shapes": 3}')
    records = read(written(tmp_path, *bad, "", step))
    assert [type(record) for record in records] == [ShimFailed] * len(bad) + [Step]


def test_files_written_in_a_copy_below_a_cache_folder_are_observed(tmp_path: Path) -> None:
    """A rehearsal runs in tpuctl's cache; caches in the script's folder are not observed."""
    root = tmp_path / ".cache/files"
    (root / ".cache").mkdir(parents=True)
    program = f"""
import sys
from types import SimpleNamespace as Namespace
from tpuctl.preflight.shim.observation import written_files

written = []
writer = Namespace(
    is_forked=lambda: False,
    attempt=lambda name, function, *arguments: function(*arguments),
    write=lambda kind, path: written.append(path),
)
settings = Namespace(observations={str(tmp_path / "xla" / "observations")!r})
root = {f"{root}/"!r}
written_files.install(
    Namespace(settings=settings, writer=writer, user_lines=Namespace(root=root))
)
for name in ("model.bin", ".cache/x"):
    open(root + name, "w").close()
print(*written)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(root / "model.bin")]
