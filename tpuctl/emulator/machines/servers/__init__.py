"""The servers of a machine: SSH, SFTP, metadata, and a node's TensorFlow."""
