"""Plugins: everything in distrl that can be swapped."""
