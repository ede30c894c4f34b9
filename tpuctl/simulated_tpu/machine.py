"""The hooks of a program on a machine of the local cloud."""

from __future__ import annotations

from .import_hooks import AfterImport
from .observer import Observer

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# With more, TensorFlow (2.18) hangs when it creates an iterator for them.
MAX_REPLICAS = 16


def start(environment: Mapping[str, str]) -> None:
    """Give this process the TPU's devices when it imports a library that uses them."""
    observer = Observer()
    devices = int(environment["TPUCTL_TPU_DEVICES"])
    slice_devices = int(environment.get("TPUCTL_TPU_SLICE_DEVICES") or devices)

    def simulate_for_tensorflow(tensorflow: Any) -> None:
        from .chip_lock import hold_for_tensorflow
        from .tensorflow_stubs import Replicas, install

        # A program on one worker of a slice that names the node trains on the whole slice.
        is_slice = environment.get("TPU_NAME", "local") not in ("", "local")
        on_tpu = slice_devices if is_slice else devices
        count = min(on_tpu, MAX_REPLICAS)
        hosts = max(1, count // devices)
        install(observer, tensorflow, Replicas(count, hosts=hosts, on_tpu=on_tpu))
        hold_for_tensorflow(tensorflow)

    def simulate_for_keras(keras: Any) -> None:
        import tensorflow  # type: ignore[import-untyped, import-not-found, unused-ignore]

        from .keras_models import install

        install(keras, tensorflow)

    def simulate_for_jax(jax: Any) -> None:
        from .chip_lock import hold_for_jax
        from .jax_devices import Devices, install

        slices = int(environment.get("MEGASCALE_NUM_SLICES") or 1)
        install(observer, jax, Devices(devices, slices))
        hold_for_jax()

    def simulate_for_torch(torch_xla: Any) -> None:
        from .torch_devices import install, spawn_here

        install(devices)
        spawn_here(observer)

    hooks = {
        "tensorflow": simulate_for_tensorflow,
        "keras": simulate_for_keras,
        "tf_keras": simulate_for_keras,
        "jax": simulate_for_jax,
        "torch_xla": simulate_for_torch,
    }

    def prepared(name: str) -> Any:
        def prepare(module: Any) -> None:
            if hasattr(module, "__version__"):  # otherwise a file of the job that has its name
                observer.attempt(name, hooks[name], module)

        return prepare

    AfterImport({name: prepared(name) for name in hooks}).install()
