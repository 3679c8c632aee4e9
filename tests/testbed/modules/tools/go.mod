module durablesessions.dev/testbed/tools

go 1.26.0
