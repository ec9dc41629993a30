"""The package as others get it: a wheel and an sdist that hold everything, installed where this checkout is out of sight."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("core", "plugins", "connectors", "schemas")
KEPT = (".py", ".avsc", ".toml", ".typed", ".json", ".lock")


def run(*command: object, cwd: Path) -> str:
    """Without the paths of this checkout; fails with what was said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built by the backend that ``pyproject.toml`` names."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it; the dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    executable = folder / "bin" / "python"
    site = Path(run(executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    [wheel] = built.glob("*.whl")
    run(
        *(
            executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--disable-pip-version-check",
            wheel,
        ),
        cwd=folder,
    )
    # After the environment's own folder and without this checkout, whose editable install is a path file there.
    (site / "borrowed.pth").write_text(f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n")
    return executable


def sources() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in KEPT and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_source_once(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        text = archive.read(entry_points).decode()
    assert len(names) == len(set(names))
    assert {f"distrl/{name}" for name in sources()} <= set(names)
    assert {"distrl/__init__.py", "distrl/py.typed"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"distrl", entry_points.split("/")[0]}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "distrl-node" in text
    assert "[distrl]" in text


def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [folder] = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=folder)
    [first], [second] = built.glob("*.whl"), (tmp_path / "again").glob("*.whl")
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        assert {(item.filename, item.CRC) for item in one.infolist()} == {
            (item.filename, item.CRC) for item in other.infolist()
        }


def test_the_installed_package_works_by_itself(python: Path, tmp_path: Path) -> None:
    code = (
        "import distrl, distrl.core, distrl.schemas, pathlib, sys\n"
        "from distrl.core.codec import Codec\n"
        "from distrl.plugins.manager import load_plugins\n"
        "manager = load_plugins()\n"
        "assert 'a-ride' in manager.names('learner'), manager.broken\n"
        "assert not any(name in sys.modules for name in ('core', 'plugins', 'connectors', 'schemas'))\n"
        "Codec()\n"
        "print(len(list(pathlib.Path(distrl.schemas.__file__).parent.rglob('*.avsc'))), distrl.__file__)"
    )
    count, file = run(python, "-c", code, cwd=tmp_path).split()
    assert int(count) >= 8
    assert Path(file).is_relative_to(python.parent.parent)
    for program in ("distrl", "distrl-node"):
        assert run(python.parent / program, "--help", cwd=tmp_path).startswith("Usage: ")
    run(python.parent / "distrl", "init", tmp_path / "x", "--template", "simulated", cwd=tmp_path)
    assert (tmp_path / "x" / "config.toml").is_file()
