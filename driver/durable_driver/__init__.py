"""The driver: one process that drives a session for one attempt."""
