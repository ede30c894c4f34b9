"""Puts everything in place in a process that was just started, and as its imports come."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from . import settings
from .context import Rehearsal
from .import_hooks import AfterImport
from .process_exit import Ending

__all__ = ["begin"]

OTHERS = ("jax", "torch")
HELPERS = ("multiprocessing", "pip", "ensurepip", "venv", "encodings", "joblib")


def begin(environment: Mapping[str, str]) -> None:
    """Watch this process, as the file that the environment names says."""
    rehearsal = Rehearsal(settings.load(environment["TPUCTL_REHEARSAL"]))
    rehearsal.ending.where = rehearsal.places.of_exception
    Hooks(rehearsal).install()


class Hooks:
    """What happens at which import."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.others: list[str] = []
        self.has_reported = False

    def install(self) -> None:
        attempt = self.rehearsal.writer.attempt
        ending: Ending = self.rehearsal.ending
        attempt("the process' end", ending.install)
        ending.last.append(self._report_without_tensorflow)
        if self.rehearsal.is_xla:
            attempt("XLA's dumps", self._prepare_dumps)
        functions: dict[str, Callable[[ModuleType], None]] = {
            "tensorflow": lambda module: attempt("TensorFlow", self._tensorflow, module),
            "keras": lambda module: attempt("Keras", self._keras, module),
            "tf_keras": lambda module: attempt("tf_keras", self._keras, module),
        }
        for name in OTHERS:
            functions[name] = self._other
        AfterImport(functions).install()

    def _other(self, module: ModuleType) -> None:
        self.others.append(module.__name__)

    def _prepare_dumps(self) -> None:
        from .xla_dumps import Dumps

        self.dumps = Dumps(self.rehearsal)
        self.dumps.install()

    def _tensorflow(self, tensorflow: ModuleType) -> None:
        from . import checkpoints, data_waits, opened_files, tpu_stubs, tracing
        from .compile_failures import Refusals
        from .graphs import Graphs
        from .strategy_run import Runs
        from .tf_functions import Functions

        rehearsal = self.rehearsal
        rehearsal.tensorflow = tensorflow
        attempt = rehearsal.writer.attempt
        graphs = Graphs(tensorflow)
        refusals = Refusals(rehearsal)
        attempt("stand-ins for a TPU", tpu_stubs.install, rehearsal, tensorflow)
        functions = Functions(rehearsal, graphs, refusals)
        attempt("functions", functions.install)
        attempt("strategy.run", Runs(rehearsal, graphs, refusals, functions).install)
        attempt("iterators", data_waits.install, rehearsal, graphs)
        attempt("traces", tracing.install, rehearsal, graphs, refusals)
        attempt("checkpoints", checkpoints.install, rehearsal, tensorflow)
        attempt("files", opened_files.install, rehearsal, tensorflow)
        self._report_start(str(getattr(tensorflow, "__version__", "?")))

    def _keras(self, keras: ModuleType) -> None:
        from . import keras_fit

        keras_fit.install(self.rehearsal, keras)

    def _report_start(self, version: str | None) -> None:
        """Write what was started, with the devices that do not initialize anything to name."""
        self.has_reported = True
        devices: list[str] = []
        if version is not None:
            replicas = self.rehearsal.settings.replicas
            count = replicas if self.rehearsal.settings.mode == "replicas" else 1
            devices = [f"CPU:{number}" for number in range(count)]
        self.rehearsal.writer.write(
            "started",
            tensorflow=version,
            keras=_keras_version(),
            devices=devices,
            script=" ".join(getattr(sys, "argv", [])),
            others=self.others,
        )

    def _report_without_tensorflow(self) -> None:
        """At the end of a process that never imported TensorFlow, if it was a script's."""
        started = getattr(sys, "orig_argv", [])[1:3] + list(getattr(sys, "argv", []))[:1]
        is_helper = any(name in word for word in started for name in HELPERS)
        if not self.has_reported and not is_helper:
            self._report_start(None)


def _keras_version() -> str | None:
    """Of the Keras that TensorFlow's is: the older one where the environment asks for it."""
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return _version("tf_keras") or _version("keras")
    return _version("keras") or _version("tf_keras")


def _version(name: str) -> str | None:
    """The version of what is installed under a name, without importing it."""
    metadata: Any = importlib.import_module("importlib.metadata")
    for distribution in (name, name.replace("_", "-")):
        try:
            return str(metadata.version(distribution))
        except metadata.PackageNotFoundError:
            continue
    return None
