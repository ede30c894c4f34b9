"""Asks the real compiler about the corpus's programs and keeps what it said.

    python tests/corpus/judge.py [--write] [PROGRAM…]

XLA compiles each program on this machine's CPU, and what compiles is lowered against the
operations of a TPU, both as `observer.py` does it. Prints where that differs from
`verdicts.toml`, and ends with 1 if it does anywhere; `--write` writes the file anew.

A verdict is `error` where a program is refused, `cost` where shapes are known only while it runs
or it is compiled more often than once, `risk` where checks of its own are lost, else `good`.
"""

from __future__ import annotations

import argparse
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

from tests.support.job_environment import job_python
from tests.support.lowering_environment import lowering_python

__all__ = ["PROGRAMS", "VERDICTS", "Verdict", "differences", "judge", "known", "programs"]

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
VERDICTS = HERE / "verdicts.toml"
KERNEL = re.compile(r"No registered '\w+' OpKernel")
# How TensorFlow and its compiler refuse. What fails in other words is a defect of the program.
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
    """What was said of one program."""

    file: str
    verdict: str
    words: str = ""  # the compiler's
    line: int = 0  # of the program, where the compiler names it
    compilations: int = 0  # of the function that was compiled most often
    dynamic: int = 0  # dimensions that the compiler knows no size of
    lost: tuple[str, ...] = ()
    tpu: str = ""  # "lowered" against a TPU's operations, or why not


def programs() -> list[Path]:
    return sorted(PROGRAMS.glob("*.py"))


def judge(chosen: Iterable[Path], *, on_tpu: bool = True) -> Iterator[Verdict]:
    """Ask about each; a compiler that answers nothing at all raises RuntimeError.

    What a TPU's operations are is asked last, in an environment of its own.
    """
    chosen = list(chosen)
    on_cpu = list(_observed("cpu", job_python(), chosen))
    compiled = [
        path
        for path, said in zip(chosen, on_cpu, strict=True)
        if not {"refused", "crashed"} & set(said)
    ]
    asked = compiled if on_tpu else []
    answers = _observed("tpu", lowering_python(), asked) if asked else ()
    lowered = dict(zip(asked, answers, strict=True))
    for path, said in zip(chosen, on_cpu, strict=True):
        yield _verdict(path.name, said, lowered.get(path, {}))


def _observed(mode: str, python: Path, chosen: list[Path]) -> Iterator[dict[str, Any]]:
    if not chosen:
        return
    with tempfile.TemporaryFile("w+") as complaints:
        asked = subprocess.Popen(
            [python, HERE / "observer.py", mode, *chosen],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=complaints,  # libtpu complains of the TPU that is not there
            text=True,
        )
        assert asked.stdout is not None
        with asked:
            for line in asked.stdout:
                said = json.loads(line)
                print(f"{mode} {said['program']}", file=sys.stderr, flush=True)
                yield said
        if asked.returncode:
            complaints.seek(0)
            raise RuntimeError(f"nobody observed: {complaints.read()[-2000:]}")


def _verdict(file: str, on_cpu: dict[str, Any], on_tpu: dict[str, Any]) -> Verdict:
    lost = tuple(on_cpu.get("lost", ()))
    compilations = max(on_cpu.get("compilations", {}).values(), default=0)
    dynamic = max(on_cpu.get("dynamic", 0), on_tpu.get("dynamic", 0))
    refused = on_cpu.get("refused") or on_cpu.get("crashed") or ""
    by_tpu = on_tpu.get("refused", "")
    tpu = "lowered" if on_tpu.get("lowered") else _short(by_tpu or on_tpu.get("unlowered", ""))
    # Which operations there are is asked of the TPU alone. What must be constant the lowering for
    # the CPU has said already, of the step as it is and not as one without variables.
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


def known() -> dict[str, Verdict]:
    """Return what the file says."""
    if not VERDICTS.exists():
        return {}
    rows = tomllib.loads(VERDICTS.read_text("utf-8"))["program"]
    return {row["file"]: Verdict(**{**row, "lost": tuple(row.get("lost", ()))}) for row in rows}


def differences(found: Iterable[Verdict]) -> list[str]:
    """Say where the file is not what the compiler says.

    Why something was not lowered for a TPU is a note beside the verdict, no part of it; nor is how
    many dimensions are dynamic, which is more for a TPU than for a CPU.
    """
    written = known()
    return [
        f"{one.file}: the file says {written.get(one.file)}, the compiler {one}"
        for one in found
        if one.file not in written or _judged(written[one.file]) != _judged(one)
    ]


def _judged(one: Verdict) -> Verdict:
    return replace(one, tpu="", dynamic=min(one.dynamic, 1))


def _write(found: Iterable[Verdict]) -> None:
    kept = {path.name: known()[path.name] for path in programs() if path.name in known()}
    kept |= {one.file: one for one in found}
    lines = [
        "# What the compiler says of each program; written by judge.py --write, never by hand."
    ]
    for file in sorted(kept):
        lines += ["", "[[program]]"]
        lines += [
            f"{key} = {json.dumps(value, ensure_ascii=False)}"
            for key, value in asdict(kept[file]).items()
            if value or key in ("file", "verdict")
        ]
    VERDICTS.write_text("\n".join(lines) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="*", help="names of files; all where none is given")
    parser.add_argument("--write", action="store_true", help="write verdicts.toml anew")
    asked = parser.parse_args()
    named = {Path(one).name for one in asked.program}
    chosen = [path for path in programs() if not named or path.name in named]
    missing = named - {path.name for path in chosen}
    if missing:
        parser.error(f"no such program: {', '.join(sorted(missing))}")
    found = list(judge(chosen))
    broken = [one for one in found if one.verdict == "broken"]
    for one in broken:
        print(f"{one.file} is no program to judge: {one.words[:1500]}", file=sys.stderr)
    if asked.write:
        _write(one for one in found if one not in broken)
        return 1 if broken else 0
    different = differences(found)
    print("\n".join(different) or f"as verdicts.toml says: {len(found)} programs")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
