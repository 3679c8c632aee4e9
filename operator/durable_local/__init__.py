"""The coordinator on one machine: child processes instead of pods, SQLite instead of an API server."""
