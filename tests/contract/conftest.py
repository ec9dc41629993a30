"""Makes the behaviour suites of this folder (``*_suite.py``) importable by the test modules that inherit them.

Tests run with importlib's import mode, which puts no folder on ``sys.path``; a suite is a plain module beside its
tests, and its assertions are rewritten like theirs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

sys.path.append(str(FOLDER))
pytest.register_assert_rewrite(*sorted(path.stem for path in FOLDER.glob("*_suite.py")))
