"""What programs use of their machine: files, processes, clocks, names, and Google's APIs."""
