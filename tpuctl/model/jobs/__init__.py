"""Jobs as recorded in the bucket: their attempts, failures, sweeps, explanations and reports."""
