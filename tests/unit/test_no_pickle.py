"""Nothing that comes from the log, the store or a file is ever unpickled: a pickle is a program."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("core", "plugins", "connectors", "schemas", "src", "compose", "tools", "examples", "benchmarks")
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
LOADERS = {"torch.load", "numpy.load", "np.load", "pandas.read_pickle", "yaml.load", "eval", "exec"}
"""Calls that may unpickle, or run, what they read."""


def findings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").partition(".")[0]
            if module in MODULES:
                yield module
            yield from (f"{module}.{a.name}" for a in node.names if f"{module}.{a.name}" in LOADERS)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            safe = any(
                (word.arg, ast.unparse(word.value)) in (("weights_only", "True"), ("allow_pickle", "False"))
                for word in node.keywords
            )
            if name in LOADERS and not safe:
                yield name


def test_no_module_unpickles() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 150
    found = {str(path.relative_to(ROOT)): names for path in files if (names := list(findings(path.read_text())))}
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import torch\ntorch.load(path)",
        "torch.load(path, weights_only=False)",
        "from dill import loads",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert list(findings(source))


@pytest.mark.parametrize(
    "source", ["torch.load(path, weights_only=True)", "np.load(p, allow_pickle=False)", "model.eval()"]
)
def test_the_search_finds_no_more(source: str) -> None:
    assert not list(findings(source))
