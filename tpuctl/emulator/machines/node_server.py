"""What a TPU node of the local cloud runs: a TensorFlow server that takes work over gRPC.

A program of its own, with the standard library and TensorFlow: it is copied to the machine as it
stands here. Its arguments are the number of this worker and the addresses of all of them, with
ports. It writes one line on stdout once it accepts connections, and runs until it is ended.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    import tensorflow as tf  # type: ignore[import-untyped, import-not-found, unused-ignore]

    task, *addresses = arguments
    cluster = tf.train.ClusterSpec({"worker": addresses})
    # Like a TPU node, it serves the job "worker": what a controller's resolver asks for.
    server = tf.distribute.Server(
        cluster, job_name="worker", task_index=int(task), protocol="grpc", start=True
    )
    print("serving TensorFlow", tf.__version__, "at", server.target, flush=True)
    server.join()


if __name__ == "__main__":
    main(sys.argv[1:])
