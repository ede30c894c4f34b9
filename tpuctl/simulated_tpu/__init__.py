"""Gives unmodified scripts the devices of a TPU, which the CPU simulates.

Machines of the local cloud and rehearsals start every Python with `sitecustomize.py` of this
folder. It installs hooks that take effect when TensorFlow, Keras, JAX, or PyTorch/XLA are imported:
JAX and PyTorch/XLA then see as many CPU devices as a worker has TPU devices, and TensorFlow's
functions for TPUs are replaced by stubs that use as many logical devices.

This folder is copied to machines, where tpuctl is not installed: it uses only the standard library.
On both sides it is loaded as part of a package named `_tpuctl`, so that its modules cannot shadow
those of the script.
"""
