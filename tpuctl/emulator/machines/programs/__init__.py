"""Programs on a machine: their processes, environment, Python and sudo."""
