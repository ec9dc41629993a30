"""The command line: ``distrl`` and ``distrl-node``. Nothing here imports torch; subcommands load lazily."""
