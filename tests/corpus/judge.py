"""Compiles the corpus's programs with the real compiler and records its verdicts.

    python tests/corpus/judge.py [--write] [PROGRAM…]

XLA compiles each program on this machine's CPU; programs that compile are then lowered with the
operations of a TPU, both by `observer.py`, which calls the program's function `train`. Prints
differences from `verdicts.toml` and exits with 1 if there are any; `--write` rewrites the file.

A verdict is `error` if a program is rejected, `cost` if it has dynamic shapes or is compiled more
than once, `risk` if its checks are dropped, otherwise `good`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.job_environment import JOB, TENSORFLOW, job_python
from tests.support.lowering_environment import lowering_python

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
VERDICTS = HERE / "verdicts.toml"
KERNEL = re.compile(r"No registered '\w+' OpKernel")
# Messages with which TensorFlow and XLA reject a program. Other errors are bugs of the program.
REFUSALS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        KERNEL.pattern,
        r"XLA compilation requires a fixed tensor list size",
        r"Using a symbolic `tf.Tensor` as a Python `bool` is not allowed",
        r"Iterating over a symbolic `tf.Tensor` is not allowed",
        r"has no attribute 'numpy'|numpy\(\) is only available when eager execution is enabled",
        r"Cannot convert a symbolic tf.Tensor \([^)]*\) to a numpy array",
        r"(?:int|float)\(\) argument must be .{0,60}not '\w*Tensor'",
        r"'SymbolicTensor' object cannot be interpreted as an integer",
        r"Input \d+ to node `[^`]+` with op \w+ must be a compile-time constant",
        r"Tensor-typed variable initializers must either be wrapped in an init_scope",
        r"is not supported (?:by|in|on) XLA[^.]{0,60}",
        r"Dynamic shape[^.]{0,80}",
    )
)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one program."""

    file: str
    verdict: str
    words: str = ""  # the compiler's message
    line: int = 0  # in the program, if the compiler names it
    compilations: int = 0  # of the most often compiled function
    dynamic: int = 0  # dimensions of unknown size
    lost: tuple[str, ...] = ()
    tpu: str = ""  # "lowered" with a TPU's operations, or the reason why not
    digest: str = ""  # of what was judged


def programs() -> list[Path]:
    return sorted(PROGRAMS.glob("*.py"))


def digest(program: Path) -> str:
    """A digest of what decides the verdict: the program, what it may import, and the versions."""
    files = [program, *sorted(PROGRAMS.glob("*/*.py")), JOB / "requirements.txt"]
    content = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(TENSORFLOW.encode() + content).hexdigest()[:16]


def judge(selected: Iterable[Path], *, on_tpu: bool = True) -> Iterator[Verdict]:
    """Yield the verdict on each program; raises RuntimeError if a compiler does not answer.

    Lowering with a TPU's operations runs last, in a separate environment.
    """
    selected = list(selected)
    on_cpu = list(_observed("cpu", job_python(), selected))
    compiled = [
        path
        for path, cpu_result in zip(selected, on_cpu, strict=True)
        if not {"refused", "crashed"} & set(cpu_result)
    ]
    tpu_paths = compiled if on_tpu else []
    answers = _observed("tpu", lowering_python(), tpu_paths) if tpu_paths else ()
    lowered = dict(zip(tpu_paths, answers, strict=True))
    for path, cpu_result in zip(selected, on_cpu, strict=True):
        verdict = _verdict(path.name, cpu_result, lowered.get(path, {}))
        yield replace(verdict, digest=digest(path))


def _observed(mode: str, python: Path, selected: list[Path]) -> Iterator[dict[str, Any]]:
    if not selected:
        return
    with tempfile.TemporaryFile("w+") as errors:
        observer = subprocess.Popen(
            [python, HERE / "observer.py", mode, *selected],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,  # libtpu logs errors about the missing TPU
            text=True,
        )
        assert observer.stdout is not None
        with observer:
            for line in observer.stdout:
                result = json.loads(line)
                print(f"{mode} {result['program']}", file=sys.stderr, flush=True)
                yield result
        if observer.returncode:
            errors.seek(0)
            raise RuntimeError(f"observer.py failed: {errors.read()[-2000:]}")


def _verdict(file: str, on_cpu: dict[str, Any], on_tpu: dict[str, Any]) -> Verdict:
    lost = tuple(on_cpu.get("lost", ()))
    compilations = max(on_cpu.get("compilations", {}).values(), default=0)
    dynamic = max(on_cpu.get("dynamic", 0), on_tpu.get("dynamic", 0))
    refused = on_cpu.get("refused") or on_cpu.get("crashed") or ""
    by_tpu = on_tpu.get("refused", "")
    tpu = "lowered" if on_tpu.get("lowered") else _short(by_tpu or on_tpu.get("unlowered", ""))
    # The TPU only decides which operations exist. Which values must be constant is already known
    # from the CPU, which lowers the actual step rather than one without variables.
    if KERNEL.search(by_tpu) and not refused:
        refused, tpu = by_tpu, "refused"
    if refused:
        words = _words(refused)
        line = on_cpu.get("line") or on_tpu.get("line") or 0
        judged = "error" if words else "broken"
        return Verdict(file, judged, words or refused, line, tpu=tpu)
    if compilations == 0:
        return Verdict(file, "broken", "nothing was compiled", tpu=tpu)
    if dynamic or compilations > 1:
        return Verdict(file, "cost", "", 0, compilations, dynamic, tpu=tpu)
    return Verdict(file, "risk" if lost else "good", "", 0, compilations, 0, lost, tpu=tpu)


def _words(refused: str) -> str:
    for pattern in REFUSALS:
        match = pattern.search(refused)
        if match:
            return " ".join(match.group().split())
    return ""


def _short(text: str) -> str:
    return re.sub(r"/\S+/", "", text.partition("\n")[0])[:90]


def load_verdicts() -> dict[str, Verdict]:
    """Return the recorded verdicts."""
    if not VERDICTS.exists():
        return {}
    rows = tomllib.loads(VERDICTS.read_text("utf-8"))["program"]
    return {row["file"]: Verdict(**{**row, "lost": tuple(row.get("lost", ()))}) for row in rows}


def differences(verdicts: Iterable[Verdict]) -> list[str]:
    """Describe the differences between the file and the compiler's verdicts.

    Why a program was not lowered for a TPU is ignored, as is the number of dynamic dimensions,
    which is higher for a TPU than for a CPU.
    """
    written = load_verdicts()
    return [
        f"{verdict.file}: the file says {written.get(verdict.file)}, the compiler {verdict}"
        for verdict in verdicts
        if verdict.file not in written or _judged(written[verdict.file]) != _judged(verdict)
    ]


def _judged(verdict: Verdict) -> Verdict:
    return replace(verdict, tpu="", digest="", dynamic=min(verdict.dynamic, 1))


def _write(verdicts: Iterable[Verdict]) -> None:
    recorded = {
        path.name: load_verdicts()[path.name] for path in programs() if path.name in load_verdicts()
    }
    recorded |= {verdict.file: verdict for verdict in verdicts}
    lines = [
        "# The compiler's verdict on each program. Generated by judge.py --write; do not edit.",
        "",
        "program = [",
    ]
    for file in sorted(recorded):
        fields = [
            f"{key} = {json.dumps(value, ensure_ascii=False)}"
            for key, value in asdict(recorded[file]).items()
            if value or key in ("file", "verdict")
        ]
        lines.append(f"  {{ {', '.join(fields)} }},")
    lines.append("]")
    VERDICTS.write_text("\n".join(lines) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="*", help="file names (default: all programs)")
    parser.add_argument("--write", action="store_true", help="rewrite verdicts.toml")
    options = parser.parse_args()
    names = {Path(program).name for program in options.program}
    selected = [path for path in programs() if not names or path.name in names]
    missing = names - {path.name for path in selected}
    if missing:
        parser.error(f"no such program: {', '.join(sorted(missing))}")
    found = list(judge(selected))
    broken = [verdict for verdict in found if verdict.verdict == "broken"]
    for broken_program in broken:
        print(
            f"{broken_program.file} is not a valid program: {broken_program.words[:1500]}",
            file=sys.stderr,
        )
    if options.write:
        _write(verdict for verdict in found if verdict not in broken)
        return 1 if broken else 0
    different = differences(found)
    print("\n".join(different) or f"same as verdicts.toml: {len(found)} programs")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
