"""What a job's worker downloads: the bundle, secrets, and compiled programs."""
