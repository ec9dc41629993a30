"""The node runtime: one loop a role, what all nodes share, and the supervisor of a run on one machine."""
