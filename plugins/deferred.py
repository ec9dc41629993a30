"""Factories that import their implementation only when they are called. Used by everything that registers.

Register hooks run in every process that loads plugins, ``distrl --help`` included, so they must not import torch
or a client library. ``deferred("package.module:Name")`` is a factory that does it in the process that needs the thing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def deferred(target: str) -> Callable[..., Any]:
    """A factory that imports ``module:attribute`` at each call and passes its arguments on.

    Raises ``ValueError`` at once for a malformed target. The call raises what the import raises; the plugin
    manager turns a missing optional package into ``MissingPackageError``.
    """
    module, separator, attribute = target.partition(":")
    if not (module and separator and attribute.isidentifier()):
        raise ValueError(f"{target!r}: write it as package.module:Name")

    def factory(*arguments: Any) -> Any:
        return getattr(importlib.import_module(module), attribute)(*arguments)

    factory.__qualname__ = factory.__name__ = target
    return factory
