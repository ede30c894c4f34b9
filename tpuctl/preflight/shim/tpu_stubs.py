"""Replaces TensorFlow's functions that need a TPU with stubs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import socket
from typing import Any

from .context import Rehearsal
from .script_calls import call_script

__all__ = ["install", "is_stub", "replace"]

# Functions that detect a TPU strategy by its name, to do what only works on a TPU.
TPU_CHECKS = (
    ("tensorflow.python.ops.control_flow_util_v2", "_is_tpu_strategy"),
    ("tensorflow.python.tpu.tpu_replication", "is_tpu_strategy"),
)
STRATEGIES = ("distribute.TPUStrategy", "distribute.experimental.TPUStrategy")


def is_stub(strategy: Any) -> bool:
    """Whether a strategy was created by a stub."""
    return bool(getattr(strategy, "_tpuctl_is_stub", False))


def install(rehearsal: Rehearsal, tensorflow: Any) -> None:
    """Install all stubs."""
    attempt = rehearsal.writer.attempt
    attempt("logical devices", _make_devices, rehearsal, tensorflow)
    attempt("TPUClusterResolver", _replace_resolver, rehearsal, tensorflow)
    attempt("TPUStrategy", _replace_strategies, rehearsal, tensorflow)
    attempt("connecting to a TPU", _replace_calls, rehearsal, tensorflow)
    attempt("lists of devices", _replace_device_lists, rehearsal, tensorflow)
    if rehearsal.settings.mode == "replicas":
        attempt("weights read from files", _accept_h5py_arrays, tensorflow)
    for module, name in TPU_CHECKS:
        with contextlib.suppress(ImportError, AttributeError):
            exclude_stubs(importlib.import_module(module), name)


def exclude_stubs(module: Any, name: str) -> None:
    """Make a function that detects TPU strategies return False for stubs."""
    is_tpu_strategy = getattr(module, name)
    setattr(module, name, lambda strategy: not is_stub(strategy) and is_tpu_strategy(strategy))


def replace(tensorflow: Any, name: str, value: Any) -> None:
    """Replace a function or class of TensorFlow under all of its public names."""
    *path, last = name.split(".")
    for root in (tensorflow, getattr(tensorflow.compat, "v2", None)):
        try:
            holder = functools.reduce(getattr, path, root)
            getattr(holder, last)
        except AttributeError:
            continue  # this version does not have it
        setattr(holder, last, value)


def _make_devices(rehearsal: Rehearsal, tensorflow: Any) -> None:
    if rehearsal.settings.mode != "replicas" or rehearsal.settings.replicas < 2:
        return
    config = tensorflow.config
    configuration = getattr(config, "LogicalDeviceConfiguration", None)
    configure = getattr(config, "set_logical_device_configuration", None)
    configuration = configuration or config.experimental.VirtualDeviceConfiguration
    configure = configure or config.experimental.set_virtual_device_configuration
    processor = config.list_physical_devices("CPU")[0]
    configure(processor, [configuration() for _ in range(rehearsal.settings.replicas)])


def _replace_device_lists(rehearsal: Rehearsal, tensorflow: Any) -> None:
    replicas = rehearsal.settings.replicas
    config = tensorflow.config
    logical, physical = config.list_logical_devices, config.list_physical_devices
    prefix = "/job:localhost/replica:0/task:0" if rehearsal.settings.kind == "vm" else "/job:worker"
    make_logical = getattr(config, "LogicalDevice", None)
    make_physical = getattr(config, "PhysicalDevice", None)

    def list_logical_devices(device_type: Any = None) -> Any:
        if device_type == "TPU" and make_logical is not None:
            names = [f"{prefix}/device:TPU:{number}" for number in range(replicas)]
            return [make_logical(name=name, device_type="TPU") for name in names]
        return call_script(logical, device_type)

    def list_physical_devices(device_type: Any = None) -> Any:
        if device_type == "TPU" and make_physical is not None:
            names = [f"/physical_device:TPU:{number}" for number in range(replicas)]
            return [make_physical(name=name, device_type="TPU") for name in names]
        return call_script(physical, device_type)

    for path in ("config", "config.experimental"):
        replace(tensorflow, f"{path}.list_logical_devices", list_logical_devices)
        replace(tensorflow, f"{path}.list_physical_devices", list_physical_devices)


def _replace_resolver(rehearsal: Rehearsal, tensorflow: Any) -> None:
    resolver = tensorflow.distribute.cluster_resolver.TPUClusterResolver
    sockets: list[socket.socket] = []

    def __init__(self: Any, tpu: Any = None, *arguments: Any, **keywords: Any) -> None:
        self._tpu = tpu if tpu is not None else os.environ.get("TPU_NAME", "local")
        self._tpuctl_is_stub = True
        self.task_type = self.task_id = None
        rehearsal.writer.write("resolver", where=rehearsal.user_lines.current(), initialized=None)

    def cluster_spec(self: Any) -> Any:
        if self._tpu == "local":
            return tensorflow.train.ClusterSpec({})
        if not sockets:  # a script may test the connection to the node
            sockets.append(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{sockets[0].getsockname()[1]}"
        return tensorflow.train.ClusterSpec({"worker": [address]})

    def connect(tpu: Any = None, *arguments: Any, **keywords: Any) -> Any:
        created = resolver(tpu)
        rehearsal.writer.write("resolver", where=None, initialized=rehearsal.user_lines.current())
        return created

    def master(self: Any, *arguments: Any, **keywords: Any) -> str:
        workers = cluster_spec(self).as_dict().get("worker", [])
        return f"grpc://{workers[0]}" if workers else ""

    count = rehearsal.settings.replicas
    resolver.__init__ = __init__
    resolver.cluster_spec = cluster_spec
    resolver.connect = staticmethod(connect)
    resolver.master = resolver.get_master = master
    resolver.get_job_name = lambda self: "worker"
    resolver.num_accelerators = lambda self, *arguments, **keywords: {"TPU": count}
    resolver.__enter__ = lambda self: self
    resolver.__exit__ = lambda self, *arguments: None
    resolver.environment = property(lambda self: "")
    resolver.__deepcopy__ = lambda self, memo: self


def _replace_calls(rehearsal: Rehearsal, tensorflow: Any) -> None:
    def do_nothing(*arguments: Any, **keywords: Any) -> None:
        return None

    def initialize_tpu_system(cluster_resolver: Any = None) -> None:
        rehearsal.writer.write("resolver", where=None, initialized=rehearsal.user_lines.current())

    replace(tensorflow, "config.experimental_connect_to_cluster", do_nothing)
    replace(tensorflow, "config.experimental_connect_to_host", do_nothing)
    replace(tensorflow, "tpu.experimental.initialize_tpu_system", initialize_tpu_system)
    replace(tensorflow, "tpu.experimental.shutdown_tpu_system", do_nothing)


def _replace_strategies(rehearsal: Rehearsal, tensorflow: Any) -> None:
    """Replace TPUStrategy with a CPU strategy of the same name.

    In mode `replicas` it is mirrored over logical devices. Otherwise it has one device; in mode
    `compile` it reports all replicas, and splits batches accordingly.
    """
    mode, replicas = rehearsal.settings.mode, rehearsal.settings.replicas
    base: Any = tensorflow.distribute.OneDeviceStrategy
    if mode == "replicas" and replicas > 1:
        base = tensorflow.distribute.MirroredStrategy

    class TPUStrategyV2(base):  # type: ignore[misc]
        """A CPU strategy with the name of a TPU strategy."""

        _tpuctl_is_stub = True

        def __init__(
            self,
            tpu_cluster_resolver: Any = None,
            device_assignment: Any = None,
            *arguments: Any,
            **keywords: Any,
        ) -> None:
            self._tpuctl_resolver = tpu_cluster_resolver
            self._tpuctl_quiet = True
            if base is tensorflow.distribute.OneDeviceStrategy:
                super().__init__("/cpu:0")
            else:
                super().__init__([f"/cpu:{number}" for number in range(replicas)])
            self.extended.num_hosts = 1
            self.extended.num_replicas_per_host = self.num_replicas_in_sync
            rehearsal.writer.write(
                "strategy",
                name="TPUStrategy",
                replicas=self.num_replicas_in_sync,
                where=rehearsal.user_lines.current(),
                is_stub=True,
            )

        @property
        def cluster_resolver(self) -> Any:
            return self._tpuctl_resolver

    if mode == "compile" and replicas > 1:
        _report_replicas(rehearsal, TPUStrategyV2, replicas)
    TPUStrategyV2.__qualname__ = "TPUStrategyV2"
    for name in STRATEGIES:
        replace(tensorflow, name, TPUStrategyV2)
    with contextlib.suppress(ImportError):
        module = importlib.import_module("tensorflow.python.distribute.tpu_strategy")
        for name in ("TPUStrategyV2", "TPUStrategy"):
            setattr(module, name, TPUStrategyV2)


def _accept_h5py_arrays(tensorflow: Any) -> None:
    """Let Keras 2 load a model's metrics, which a TPU stores in another kind of variable."""
    values: Any = importlib.import_module("tensorflow.python.distribute.values_util")
    assign = values.on_read_assign_cross_replica

    def on_read_assign_cross_replica(variable: Any, value: Any, **keywords: Any) -> Any:
        if type(value).__module__.startswith("h5py"):
            value = tensorflow.convert_to_tensor(value[()])
        return call_script(assign, variable, value, **keywords)

    values.on_read_assign_cross_replica = on_read_assign_cross_replica


def _report_replicas(rehearsal: Rehearsal, strategy: Any, replicas: int) -> None:
    distribute = strategy.experimental_distribute_dataset
    writer = rehearsal.writer

    def experimental_distribute_dataset(self: Any, dataset: Any, options: Any = None) -> Any:
        part = writer.attempt("a replica's batch", _replica_dataset, dataset, replicas)
        return call_script(distribute, self, dataset if part is None else part, options)

    strategy.num_replicas_in_sync = property(lambda self: replicas)
    strategy.experimental_distribute_dataset = experimental_distribute_dataset


def _replica_dataset(dataset: Any, replicas: int) -> Any:
    """The dataset with one replica's batch size, as a strategy with several would split it."""
    module = importlib.import_module("tensorflow.python.data.experimental.ops.distribute")
    size = int(module.compute_batch_size(dataset))
    nest = importlib.import_module("tensorflow").nest
    shapes = [getattr(spec, "shape", None) for spec in nest.flatten(dataset.element_spec)]
    is_static = all(shape is not None and shape[:1].is_fully_defined() for shape in shapes)
    if size <= 0:
        return dataset
    # TensorFlow's rewriting of distributed datasets would undo `rebatch`.
    return dataset.unbatch().batch(math.ceil(size / replicas), drop_remainder=is_static)
