"""The daemon's version, as GetInfo and GetCapabilities tell it."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("durable-sessions")
except PackageNotFoundError:  # run from a source tree
    VERSION = "0"
