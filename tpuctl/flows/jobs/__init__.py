"""Jobs from the script to their end: checked, submitted, watched, recovered."""
