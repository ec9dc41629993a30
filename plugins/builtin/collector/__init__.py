"""Built-in collectors: episodes with the policy, and recorded demonstrations."""
