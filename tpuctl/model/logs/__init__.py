"""What a job's log shows: its ranges and last lines, metrics, progress, and errors."""
