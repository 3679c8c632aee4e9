"""`python -m durable_space`: the same as `durable space`, without the rest of the CLI."""

from durable_space.cli import space

space(prog_name="durable space")
