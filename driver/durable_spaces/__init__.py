"""The adapter: every tool call's effect on the Space happens exactly once, in order, or not at all."""
