"""Built-in evaluators: stateless, and without a model."""
