"""The two errors a person sees: something went wrong with the test bed, or the machine lacks something it needs."""


class BedError(Exception):
    """The test bed can't go on; the message says what failed, where, and what to do."""


class MissingError(BedError):
    """The machine lacks something (a program, a right, a package). A test level is skipped for it, except in CI."""
