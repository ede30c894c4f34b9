"""Jobs, their reports, comparisons and sweeps, as text and as HTML."""
