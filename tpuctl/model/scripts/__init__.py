"""What is read of a script and its folder without running it."""
