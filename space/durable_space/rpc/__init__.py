"""The protocols on the wire: each service turns messages into calls of the core and its values and refusals back."""
