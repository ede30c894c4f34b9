"""What a job installs: read from its folder, decided before the upload."""
