"""The Space daemon: files and commands behind epochs and an exec ledger."""
