"""End commands with everything they spawned, and prove it (`ender`), by what the machine offers (`cgroup`, `pidns`, `tree`)."""
