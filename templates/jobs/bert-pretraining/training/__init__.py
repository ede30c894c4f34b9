"""Training: devices, the network, the loop, checkpoints and the exported model."""
