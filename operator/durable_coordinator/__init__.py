"""The coordinator, pure: what to do about a session and its Space, from facts alone.

A shell (`durable_operator`, `durable_local`) reads the world into `facts`, asks `session.plan_session` or `space.plan_space`,
and carries out the `actions` in their order; then it reads again. `manifest` and `resolve` read files for the same specs.
"""
