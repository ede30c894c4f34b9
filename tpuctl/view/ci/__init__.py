"""What code hosts show of findings and runs: annotations, reports and summaries."""
