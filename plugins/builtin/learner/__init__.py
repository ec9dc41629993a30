"""Built-in learners and what they share: targets, losses, the replay buffer. Options modules need no torch."""
