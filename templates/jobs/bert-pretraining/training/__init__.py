"""Records become a model: devices, the network, the loop, what is kept of it."""
