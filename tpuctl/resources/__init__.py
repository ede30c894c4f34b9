"""One file for the whole life of each kind of resource."""
