"""`python -m durable_driver` is `durable driver`."""

from durable_driver.cli import driver

driver(prog_name="durable driver")
