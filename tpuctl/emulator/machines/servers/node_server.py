"""The program of a TPU node: a TensorFlow server that executes work received over gRPC.

A standalone program that is copied to the machine; it uses only the standard library and
TensorFlow. Its arguments are this worker's index, and the addresses of all workers with ports. It
writes one line to stdout once it accepts connections, and runs until it is killed.
"""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> None:
    import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]

    task, *addresses = arguments
    cluster = tf.train.ClusterSpec({"worker": addresses})
    # Like a TPU node, it serves the job "worker", which a controller's resolver expects.
    server = tf.distribute.Server(
        cluster, job_name="worker", task_index=int(task), protocol="grpc", start=True
    )
    print("serving TensorFlow", tf.__version__, "at", server.target, flush=True)
    server.join()


if __name__ == "__main__":
    main(sys.argv[1:])
