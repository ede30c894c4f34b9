"""The catalog commands: types, zones, runtimes, prices and quota; offline, or with --live."""
