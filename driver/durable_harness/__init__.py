"""The durable harness: an agent loop whose every step is committed before anyone sees it."""
