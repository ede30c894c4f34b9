"""From an empty Google Cloud project to a model training on a TPU, and back to zero cost."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("tpuctl")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0.0.0"
