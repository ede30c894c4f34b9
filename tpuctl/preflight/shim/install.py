"""Installs the hooks of a process at its start and after its imports."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...simulated_tpu.import_hooks import AfterImport
from .observation import settings
from .observation.context import Rehearsal
from .observation.process_exit import ScriptExit
from .observation.waits import Waits

if TYPE_CHECKING:
    from .jax.compiled_functions import JaxFunctions
    from .observation.xla_dumps import XlaDumps
    from .torch.training import TorchTraining

OTHER_FRAMEWORKS = ("jax", "torch")
HELPER_PROGRAMS = ("multiprocessing", "pip", "ensurepip", "venv", "encodings", "joblib")


def start(environment: Mapping[str, str]) -> None:
    """Observe this process with the settings file named in the environment."""
    rehearsal = Rehearsal(settings.load(environment["TPUCTL_REHEARSAL"]))
    Hooks(rehearsal).install()


class Hooks:
    """The hooks for each import."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.others: list[str] = []
        self.dumps: XlaDumps | None = None
        self.jax_functions: JaxFunctions | None = None
        self.torch_training: TorchTraining | None = None
        self.watches_files = False
        self.has_reported = False

    def install(self) -> None:
        attempt = self.rehearsal.writer.attempt
        script_exit: ScriptExit = self.rehearsal.script_exit
        attempt("the exit", script_exit.install)
        script_exit.callbacks.append(self._report_without_tensorflow)
        if self.rehearsal.is_xla:
            attempt("XLA's dumps", self._prepare_dumps)
        functions: dict[str, Callable[[ModuleType], None]] = {
            "tensorflow": lambda module: attempt("TensorFlow", self._watch_tensorflow, module),
            "keras": lambda module: attempt("Keras", self._watch_keras, module),
            "tf_keras": lambda module: attempt("tf_keras", self._watch_keras, module),
        }
        for name in OTHER_FRAMEWORKS:
            functions[name] = self._record_other
        functions["jax"] = lambda module: attempt("JAX", self._watch_jax, module)
        functions["jax.experimental"] = lambda module: attempt(
            "callbacks", self._watch_jax_callbacks, module
        )
        functions["jax.experimental.multihost_utils"] = lambda module: attempt(
            "calls of all processes", self._watch_jax_processes, module
        )
        functions["torch"] = lambda module: attempt("PyTorch", self._watch_torch, module)
        functions["torch_xla"] = lambda module: attempt("PyTorch/XLA", self._watch_xla, module)
        for name, install in (
            ("torch_xla.distributed.spmd.xla_sharding", "install_sharding"),
            ("torch_xla.distributed.parallel_loader", "install_loader"),
        ):
            functions[name] = functools.partial(self._watch_part_of_xla, install)
        for name in ("torch.distributed.checkpoint", "safetensors.torch"):
            functions[name] = lambda module: attempt("files", self._watch_torch_files, module)
        functions["orbax.checkpoint"] = lambda module: attempt("Orbax", self._watch_orbax, module)
        AfterImport(functions).install()

    def _record_other(self, module: ModuleType) -> None:
        self.others.append(module.__name__)

    def _watch_jax(self, jax: ModuleType) -> None:
        from ...simulated_tpu import jax_devices
        from .jax.compiled_functions import JaxFunctions

        rehearsal = self.rehearsal
        self._record_other(jax)
        attempt = rehearsal.writer.attempt
        rehearsal.report_jax = self._report_jax
        settings = rehearsal.settings
        devices = jax_devices.Devices(settings.devices, settings.slices)
        attempt("JAX", jax_devices.install, rehearsal.observer, jax, devices)
        processes = jax_devices.Processes(
            settings.processes, settings.process, settings.coordinator
        )
        attempt("JAX's processes", jax_devices.start_processes, rehearsal.observer, jax, processes)
        self.jax_functions = JaxFunctions(rehearsal, jax, self.dumps)
        attempt("JAX", self.jax_functions.install)
        if settings.processes > 1:
            attempt("waits", Waits(rehearsal).install)
        self._watch_written_files()

    def _watch_written_files(self) -> None:
        from .observation import written_files

        if not self.watches_files:
            self.watches_files = True
            self.rehearsal.writer.attempt("files", written_files.install, self.rehearsal)

    def _watch_jax_callbacks(self, experimental: ModuleType) -> None:
        if self.jax_functions is not None:
            self.jax_functions.watch_callbacks(experimental)

    def _watch_jax_processes(self, multihost_utils: ModuleType) -> None:
        if self.jax_functions is not None:
            self.jax_functions.watch_processes(multihost_utils)

    def _watch_orbax(self, orbax: ModuleType) -> None:
        from .observation import checkpoints

        checkpoints.install_orbax(self.rehearsal, orbax)

    def _watch_torch(self, torch: ModuleType) -> None:
        from .torch.training import TorchTraining

        self._record_other(torch)
        self.rehearsal.report_torch = self._report_torch
        self.torch_training = TorchTraining(self.rehearsal, torch, self.dumps)
        self.torch_training.install()
        self.rehearsal.writer.attempt("checkpoints", self._watch_torch_files, torch)
        self._watch_written_files()

    def _watch_xla(self, torch_xla: ModuleType) -> None:
        from ...simulated_tpu import torch_devices

        observer = self.rehearsal.observer
        torch_devices.install(self.rehearsal.settings.torch_devices)
        observer.attempt("PyTorch's processes", torch_devices.spawn_here, observer)
        if self.torch_training is not None:
            self.torch_training.install_xla(torch_xla)

    def _watch_part_of_xla(self, install: str, module: ModuleType) -> None:
        if self.torch_training is not None:
            function = getattr(self.torch_training, install)
            self.rehearsal.writer.attempt("PyTorch/XLA", function, module)

    def _watch_torch_files(self, module: ModuleType) -> None:
        from .observation import checkpoints

        checkpoints.install_torch(self.rehearsal, module)

    def _report_torch(self) -> None:
        self._report_start(None, torch=_version("torch"))

    def _report_jax(self) -> None:
        self._report_start(None, _version("jax"))

    def _prepare_dumps(self) -> None:
        from .observation.xla_dumps import XlaDumps

        self.dumps = XlaDumps(self.rehearsal)
        self.dumps.install()

    def _watch_tensorflow(self, tensorflow: ModuleType) -> None:
        from ...simulated_tpu import tensorflow_stubs
        from .observation import checkpoints
        from .tensorflow import data_waits, opened_files, soft_placement, tracing
        from .tensorflow.compile_failures import Refusals
        from .tensorflow.graphs import Graphs
        from .tensorflow.strategy_run import StrategyRuns
        from .tensorflow.tf_functions import Functions

        rehearsal = self.rehearsal
        rehearsal.tensorflow = tensorflow
        attempt = rehearsal.writer.attempt
        graphs = Graphs(tensorflow)
        refusals = Refusals(rehearsal)
        settings = rehearsal.settings
        replicas = tensorflow_stubs.Replicas(
            settings.replicas,
            is_mirrored=settings.mode == "replicas",
            reports_all=rehearsal.is_compile,
            is_node=settings.kind != "vm",
        )
        observer = rehearsal.observer
        attempt("TPU stubs", tensorflow_stubs.install, observer, tensorflow, replicas)
        attempt("soft placement", soft_placement.install, rehearsal, graphs)
        functions = Functions(rehearsal, graphs, refusals)
        attempt("functions", functions.install)
        attempt("strategy.run", StrategyRuns(rehearsal, graphs, refusals, functions).install)
        attempt("iterators", data_waits.install, rehearsal, graphs)
        attempt("traces", tracing.install, rehearsal, graphs, refusals)
        attempt("checkpoints", checkpoints.install, rehearsal, tensorflow)
        attempt("files", opened_files.install, rehearsal, tensorflow)
        self._report_start(str(getattr(tensorflow, "__version__", "?")))

    def _watch_keras(self, keras: ModuleType) -> None:
        from .tensorflow import keras_fit

        keras_fit.install(self.rehearsal, keras)

    def _report_start(
        self, version: str | None, jax: str | None = None, torch: str | None = None
    ) -> None:
        """Write the start, with device names that do not require initializing devices."""
        self.has_reported = True
        devices: list[str] = []
        if version is not None:
            replicas = self.rehearsal.settings.replicas
            count = replicas if self.rehearsal.settings.mode == "replicas" else 1
            devices = [f"CPU:{number}" for number in range(count)]
        self.rehearsal.writer.write(
            "started",
            tensorflow=version,
            jax=jax,
            torch=torch,
            torch_xla=_version("torch_xla") if torch and "torch_xla" in sys.modules else None,
            keras=_keras_version(),
            devices=devices,
            script=" ".join(getattr(sys, "argv", [])),
            others=self.others,
        )

    def _report_without_tensorflow(self) -> None:
        """At exit of a process that never imported TensorFlow, unless it is a helper program."""
        started = getattr(sys, "orig_argv", [])[1:3] + list(getattr(sys, "argv", []))[:1]
        is_helper = any(name in word for word in started for name in HELPER_PROGRAMS)
        if not self.has_reported and not is_helper:
            name = next((name for name in OTHER_FRAMEWORKS if name in self.others), None)
            self._report_start(None, **({name: _version(name)} if name else {}))


def _keras_version() -> str | None:
    """The version of tf.keras, which the environment may set to the legacy Keras."""
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return _version("tf_keras") or _version("keras")
    return _version("keras") or _version("tf_keras")


def _version(name: str) -> str | None:
    """The version of an installed package, without importing it."""
    metadata: Any = importlib.import_module("importlib.metadata")
    for distribution in (name, name.replace("_", "-")):
        try:
            return str(metadata.version(distribution))
        except metadata.PackageNotFoundError:
            continue
    return None
