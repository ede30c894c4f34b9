"""What instances can be had: machine types, provisioning models, reservations, quotas."""
