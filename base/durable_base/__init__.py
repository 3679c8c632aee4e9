"""What every part may use and what uses none of them: crash points, durable writes, the floor rule, errors with a remedy.

Standard library only, so that the Space's shims and helpers can carry it.
"""
