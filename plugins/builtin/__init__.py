"""The project's own plugins. They register through the same hooks as a stranger's."""
