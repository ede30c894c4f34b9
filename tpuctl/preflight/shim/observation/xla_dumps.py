"""Observes XLA compilations, from the programs that XLA dumps."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from typing import Any

from .context import Rehearsal, Trace

UNOPTIMIZED = re.compile(
    r"^(?P<module>module_\d+)\.(?:a_)?_*inference_(?P<function>.+?_\d+)__(?:XlaMustCompile.*)?"
    r"\.\d+\.before_optimizations\.txt$"
)
# Of JAX and of PyTorch.
OTHER_MODULE = re.compile(
    r"^(?P<module>module_\d+)\.(?:p?(?:jit|map)_*)?(?P<function>.*?)(?:\.\d+)?\.before_opt"
)
LAYOUT = re.compile(r"entry_computation_layout=\{\((?P<parameters>.*?)\)->", re.DOTALL)
PARAMETER = re.compile(r"(?P<type>[a-z]+\d*)\[(?P<dims>[^\]]*)\]")
TOTAL = re.compile(r"^Total bytes used: (?P<bytes>\d+)", re.MULTILINE)
DYNAMIC = re.compile(r"<=\d+")
SHAPE = re.compile(r"\[[\d,<=]*<=[\d,<=]*\]")
KINDS = {"s": "int", "u": "uint", "f": "float", "c": "complex", "bf": "bfloat"}


class XlaDumps:
    """Makes XLA dump its programs to a folder, and reads each once.

    There is one dump per compilation, unlike traces, which need not be compiled.
    """

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.folder = f"{rehearsal.settings.observations}.xla-{os.getpid()}"
        self.read_modules: set[str] = set()
        self.saved: set[str] = set()

    def install(self) -> None:
        """Enable dumps; must be called before TensorFlow reads its environment."""
        existing = os.environ.get("XLA_FLAGS", "")
        dump_flags = f"--xla_dump_to={self.folder} --xla_dump_hlo_as_text"
        os.environ["XLA_FLAGS"] = f"{existing} {dump_flags}".strip()
        self.rehearsal.steps.callbacks.append(self.read)
        self.rehearsal.script_exit.callbacks.append(self.finish)

    def finish(self) -> None:
        self.read()
        shutil.rmtree(self.folder, ignore_errors=True)

    def read(self) -> None:
        """Write the compilations since the last call."""
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return
        for name in names:
            match = UNOPTIMIZED.match(name)
            if match is None or match["module"] in self.read_modules:
                continue
            stem = name.removesuffix("before_optimizations.txt")
            texts = [other for other in names if other.startswith(stem)]
            if any(other.endswith("-buffer-assignment.txt") for other in texts):
                self.read_modules.add(match["module"])
                self._write(match["function"], name, texts)
        for name in names:
            if name.endswith((".ll", ".o")) and name.partition(".")[0] in self.read_modules:
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(self.folder, name))

    def _write(self, function: str, unoptimized: str, texts: list[str]) -> None:
        program = self._text(unoptimized)
        paths = [os.path.join(self.folder, name) for name in texts]
        times = [os.stat(path).st_mtime for path in paths if os.path.exists(path)]
        assignment = [name for name in texts if name.endswith("-buffer-assignment.txt")]
        total = TOTAL.search(self._text(assignment[0]))
        trace = self._trace_of(function)
        shapes = [] if trace.shapes is None else _parameters(program)[: len(trace.shapes)]
        self.rehearsal.writer.write(
            "compiled",
            function=trace.name,
            where=trace.where,
            seconds=round(max(times) - min(times), 3),
            shapes=shapes,
            trains=trace.trains,
            dynamic=sum(len(DYNAMIC.findall(shape)) for shape in SHAPE.findall(program)),
            peak=int(total["bytes"]) if total else None,
            program=self._save_program(trace.name, unoptimized),
        )

    def program_of(self, function: str, title: str = "") -> dict[str, Any]:
        """The memory and the program of the newest compilation of a function, without TensorFlow.

        `title` is the function's name in observations, if it is another.
        """
        for name in sorted(os.listdir(self.folder), reverse=True):
            match = OTHER_MODULE.match(name)
            if match is None or _letters(match["function"]) != _letters(function):
                continue
            prefix = name.partition(".before_optimizations")[0]
            total = self._total_bytes(f"{prefix}.cpu_after_optimizations-buffer-assignment")
            program = self._save_program(title or function, name)
            self._remove_code()
            return {"peak": int(total["bytes"]) if total else None, "program": program}
        return {}

    def _total_bytes(self, prefix: str) -> re.Match[str] | None:
        """In one of two files, depending on the version of XLA."""
        for name in sorted(os.listdir(self.folder)):
            total = TOTAL.search(self._text(name)) if name.startswith(prefix) else None
            if total is not None:
                return total
        return None

    def _remove_code(self) -> None:
        for name in os.listdir(self.folder):
            if name.endswith((".ll", ".o", ".mlir")):
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(self.folder, name))

    def _trace_of(self, function: str) -> Trace:
        for key, trace in self.rehearsal.traces.items():
            if re.sub(r"\W", "_", key) == function:
                return trace
        return Trace(re.sub(r"_\d+$", "", function))

    def _save_program(self, function: str, unoptimized: str) -> str | None:
        """Save the first program of each function, for the host to read and delete."""
        if function in self.saved:
            return None
        self.saved.add(function)
        path = f"{self.folder}-{len(self.saved)}.hlo"
        shutil.copyfile(os.path.join(self.folder, unoptimized), path)
        return path

    def _text(self, name: str) -> str:
        with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
            return file.read()


def _parameters(program: str) -> list[list[Any]]:
    layout = LAYOUT.search(program.partition("\n")[0])
    parameters = PARAMETER.finditer(layout["parameters"]) if layout else ()
    return [
        [
            _type(parameter["type"]),
            [int(dim.lstrip("<=")) for dim in parameter["dims"].split(",") if dim],
        ]
        for parameter in parameters
    ]


def _type(name: str) -> str:
    """TensorFlow's name of an XLA type.

    >>> _type("s32"), _type("bf16"), _type("pred")
    ('int32', 'bfloat16', 'bool')
    """
    kind = name.rstrip("0123456789")
    return "bool" if name == "pred" else KINDS.get(kind, kind) + name[len(kind) :]


def _letters(name: str) -> str:
    """A name without the characters that XLA replaces in the names of files."""
    return re.sub(r"\W|_", "", name)
