"""The command line: `durable` on one machine, `kubectl durable` on a cluster."""
