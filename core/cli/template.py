"""The configurations that ship with the package. Used by ``demo`` and ``init``."""

from __future__ import annotations

from pathlib import Path

TEMPLATES = ("simulated", "miniwob", "android")
"""What ``distrl init`` offers; ``demo`` is shipped too."""
_FOLDER = Path(__file__).parent / "templates"


def template_path(name: str) -> Path:
    """Where a shipped configuration lies."""
    return _FOLDER / f"{name}.toml"
