"""`python -m durable_cli`: how coordinators start `durable driver` and `durable space` whatever the PATH is."""

from durable_cli.main import main

main()
