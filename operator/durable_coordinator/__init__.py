"""The coordinator, pure: what to do about a session and its Space, from facts alone."""
