"""The Kubernetes operator: reads, asks the coordinator, acts."""
