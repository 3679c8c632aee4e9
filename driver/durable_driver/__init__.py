"""The driver: one process that drives a session for one attempt."""

from durable_driver.context import DriveContext as DriveContext
from durable_driver.environment import DriveEnvironment as DriveEnvironment
from durable_driver.errors import PermanentFailure as PermanentFailure
from durable_driver.run import run_durable_session as run_durable_session
