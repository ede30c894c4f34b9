"""Jobs: bundles and their upload, the supervisor on workers, and logs."""
