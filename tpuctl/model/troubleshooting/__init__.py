"""Known errors, diagnoses, and what a bug report needs."""
