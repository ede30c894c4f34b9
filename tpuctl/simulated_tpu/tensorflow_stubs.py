"""Replaces TensorFlow's functions that need a TPU with stubs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import socket
import sys
from dataclasses import dataclass
from typing import Any

from .observer import Observer
from .script_calls import call_script

# Functions that detect a TPU strategy by its name, to do what only works on a TPU.
TPU_CHECKS = (
    ("tensorflow.python.ops.control_flow_util_v2", "_is_tpu_strategy"),
    ("tensorflow.python.tpu.tpu_replication", "is_tpu_strategy"),
)
STRATEGIES = ("distribute.TPUStrategy", "distribute.experimental.TPUStrategy")


@dataclass(frozen=True)
class Replicas:
    """What a TPUStrategy becomes.

    It is mirrored over logical devices, or has one device. With `reports_all` it has one device
    but reports all replicas, and splits batches accordingly.
    """

    count: int
    is_mirrored: bool = True
    reports_all: bool = False
    is_node: bool = False  # a TPU node (API v1), which has addresses
    hosts: int = 1
    on_tpu: int = 0  # on the TPU, if there are fewer here


def is_stub(strategy: Any) -> bool:
    """Whether a strategy was created by a stub."""
    return bool(getattr(strategy, "_tpuctl_is_stub", False))


def install(observer: Observer, tensorflow: Any, replicas: Replicas) -> None:
    """Install all stubs."""
    attempt = observer.attempt
    devices = Devices(tensorflow, replicas)
    attempt("logical devices", devices.create)
    attempt("TPUClusterResolver", _replace_resolver, observer, tensorflow, replicas)
    attempt("TPUStrategy", _replace_strategies, observer, tensorflow, replicas)
    attempt("connecting to a TPU", _replace_calls, observer, tensorflow)
    attempt("lists of devices", devices.replace_lists)
    if replicas.is_mirrored:
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


class Devices:
    """The logical devices: the CPU's, of which replicas use several, and those of the TPU."""

    def __init__(self, tensorflow: Any, replicas: Replicas) -> None:
        self.tensorflow, self.replicas = tensorflow, replicas
        self.config = tensorflow.config
        self.processor: Any = None
        self.configured: list[Any] = []

    def create(self) -> None:
        """Create the CPU's devices, before the script uses one: TensorFlow cannot do it later."""
        if not self.replicas.is_mirrored or self.replicas.count < 2:
            return
        configuration = self._function("LogicalDeviceConfiguration", "VirtualDeviceConfiguration")
        configure = self._function(
            "set_logical_device_configuration", "set_virtual_device_configuration"
        )
        self.configured = [configuration() for _ in range(self.replicas.count)]
        self.processor = self.config.list_physical_devices("CPU")[0]
        configure(self.processor, self.configured)

    def _function(self, name: str, old_name: str) -> Any:
        return getattr(self.config, name, None) or getattr(self.config.experimental, old_name)

    def is_changed(self) -> bool:
        """Whether the script has configured the CPU's devices itself."""
        find = self._function(
            "get_logical_device_configuration", "get_virtual_device_configuration"
        )
        return find(self.processor) is not self.configured

    def replace_lists(self) -> None:
        """Show the TPU's devices, and one CPU, as on a TPU VM."""
        numbers = range(self.replicas.count)
        prefix = "/job:worker" if self.replicas.is_node else "/job:localhost/replica:0/task:0"
        self._replace_list("LogicalDevice", [f"{prefix}/device:TPU:{number}" for number in numbers])
        self._replace_list(
            "PhysicalDevice", [f"/physical_device:TPU:{number}" for number in numbers]
        )

    def _replace_list(self, kind: str, names: list[str]) -> None:
        make = getattr(self.config, kind, None)
        if make is None:
            return
        name = "list_logical_devices" if kind == "LogicalDevice" else "list_physical_devices"
        original = getattr(self.config, name)

        @functools.wraps(original)
        def list_devices(device_type: Any = None) -> Any:
            chips = [make(name=name, device_type="TPU") for name in names]
            if device_type == "TPU":
                return chips
            devices = call_script(original, device_type)
            if self.configured and not self.is_changed():
                processors = [device for device in devices if device.device_type == "CPU"]
                devices = [device for device in devices if device not in processors[1:]]
            return devices if device_type else [*devices, *chips]

        for path in ("config", "config.experimental"):
            replace(self.tensorflow, f"{path}.{name}", list_devices)


def _replace_resolver(observer: Observer, tensorflow: Any, replicas: Replicas) -> None:
    resolver = tensorflow.distribute.cluster_resolver.TPUClusterResolver
    sockets: list[socket.socket] = []

    def __init__(self: Any, tpu: Any = None, *arguments: Any, **keywords: Any) -> None:
        self._tpu = tpu if tpu is not None else os.environ.get("TPU_NAME", "local")
        self._tpuctl_is_stub = True
        self.task_type = self.task_id = None
        observer.write("resolver", where=observer.line(), initialized=None)

    def cluster_spec(self: Any) -> Any:
        if self._tpu == "local":
            return tensorflow.train.ClusterSpec({})
        if not sockets:  # a script may test the connection to the node
            sockets.append(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{sockets[0].getsockname()[1]}"
        return tensorflow.train.ClusterSpec({"worker": [address]})

    def connect(tpu: Any = None, *arguments: Any, **keywords: Any) -> Any:
        created = resolver(tpu)
        observer.write("resolver", where=None, initialized=observer.line())
        return created

    def master(self: Any, *arguments: Any, **keywords: Any) -> str:
        workers = cluster_spec(self).as_dict().get("worker", [])
        return f"grpc://{workers[0]}" if workers else ""

    resolver.__init__ = __init__
    resolver.cluster_spec = cluster_spec
    resolver.connect = staticmethod(connect)
    resolver.master = resolver.get_master = master
    resolver.get_job_name = lambda self: "worker"
    resolver.num_accelerators = lambda self, *arguments, **keywords: {"TPU": replicas.count}
    resolver.__enter__ = lambda self: self
    resolver.__exit__ = lambda self, *arguments: None
    resolver.environment = property(lambda self: "")
    resolver.__deepcopy__ = lambda self, memo: self


def _replace_calls(observer: Observer, tensorflow: Any) -> None:
    def do_nothing(*arguments: Any, **keywords: Any) -> None:
        return None

    def initialize_tpu_system(cluster_resolver: Any = None) -> None:
        observer.write("resolver", where=None, initialized=observer.line())

    replace(tensorflow, "config.experimental_connect_to_cluster", do_nothing)
    replace(tensorflow, "config.experimental_connect_to_host", do_nothing)
    replace(tensorflow, "tpu.experimental.initialize_tpu_system", initialize_tpu_system)
    replace(tensorflow, "tpu.experimental.shutdown_tpu_system", do_nothing)


def _replace_strategies(observer: Observer, tensorflow: Any, replicas: Replicas) -> None:
    """Replace TPUStrategy with a CPU strategy of the same name."""
    is_mirrored = replicas.is_mirrored and replicas.count > 1
    base: Any = tensorflow.distribute.OneDeviceStrategy
    if is_mirrored:
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
            if replicas.on_tpu > replicas.count:
                print(
                    f"tpuctl: TPUStrategy has {replicas.count} replicas here, and "
                    f"{replicas.on_tpu} on the TPU",
                    file=sys.stderr,
                    flush=True,
                )
            if is_mirrored:
                # Collectives, the default, fail in conditionals and loops of a graph: there Keras 3
                # has its steps per execution, and a function that creates variables its first call.
                super().__init__(
                    [f"/cpu:{number}" for number in range(replicas.count)],
                    tensorflow.distribute.ReductionToOneDevice(),
                )
            else:
                super().__init__("/cpu:0")
            self.extended.num_hosts = replicas.hosts
            self.extended.num_replicas_per_host = self.num_replicas_in_sync // replicas.hosts
            observer.write(
                "strategy",
                name="TPUStrategy",
                replicas=self.num_replicas_in_sync,
                where=observer.line(),
                is_stub=True,
            )

        @property
        def cluster_resolver(self) -> Any:
            return self._tpuctl_resolver

    if replicas.reports_all and replicas.count > 1:
        _report_replicas(observer, TPUStrategyV2, replicas.count)
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


def _report_replicas(observer: Observer, strategy: Any, replicas: int) -> None:
    distribute = strategy.experimental_distribute_dataset

    def experimental_distribute_dataset(self: Any, dataset: Any, options: Any = None) -> Any:
        part = observer.attempt("a replica's batch", _replica_dataset, dataset, replicas)
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
