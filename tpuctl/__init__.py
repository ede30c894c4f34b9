"""From an empty Google Cloud project to a model training on a TPU, and back to zero cost."""

__all__ = ["__version__"]

__version__ = "0.1.0"
