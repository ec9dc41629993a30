"""Makes the modules of this folder importable by its tests, which run with importlib's import mode."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
