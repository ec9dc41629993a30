"""The documentation cannot drift: reference pages equal what the code renders, names have their headings, commands exist."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from distrl.core.cli.main import COMMANDS
from distrl.core.cli.main import command as distrl
from distrl.core.cli.node import command as distrl_node
from distrl.core.config import Config
from distrl.core.contracts import metric
from distrl.core.contracts.topic import ALL
from distrl.core.errors import DistrlError
from distrl.plugins.spec import ObserveSpec, RegisterSpec

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES: dict[str, Callable[[], str]] = runpy.run_path(str(ROOT / "tools" / "reference.py"))["PAGES"]
GUIDES = (
    "README.md",
    "docs/running.md",
    "docs/architecture.md",
    "docs/topics.md",
    "docs/schemas.md",
    "docs/metrics.md",
    "docs/observability.md",
    "docs/tracing.md",
)


def headings(page: str) -> set[str]:
    return {match.strip("`") for match in re.findall(r"^#+ (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.M)}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def command_lines() -> Iterator[tuple[str, str]]:
    for page in GUIDES:
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                yield page, line


def subclasses(kind: type[DistrlError]) -> Iterator[type[DistrlError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_reference_page_is_what_the_code_says(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == PAGES[page](), "run `make docs`"


def test_codes_settings_hooks_and_topics_have_their_place() -> None:
    codes = {error.code for error in subclasses(DistrlError) if error.__module__ == DistrlError.__module__}
    assert codes <= headings("errors.md")
    assert {f"[{section}]" for section in Config.model_fields} <= headings("configuration.md")
    hooks = {name for spec in (RegisterSpec, ObserveSpec) for name in vars(spec) if name.startswith("distrl_")}
    assert hooks <= headings("hooks.md")
    assert set(ALL) == headings("topics.md") - {"Topics"}


def test_codes_are_unique() -> None:
    errors = [error for error in subclasses(DistrlError) if error.__module__ == DistrlError.__module__]
    assert len({error.code for error in errors}) == len(errors)


def test_every_name_that_loops_count_under_stands_in_the_table() -> None:
    constants = {
        value
        for name, value in vars(metric).items()
        if name[0] != "_" and name.isupper() and isinstance(value, str) and not value.startswith("distrl_")
    }
    constants.discard(metric.OUTBOX_SINCE)  # a time among a node's counters, and no metric
    assert constants == {item.name for item in metric.NODE_METRICS if item.name}


def test_served_names_are_unique_and_follow_the_conventions() -> None:
    served = [item.served for item in (*metric.NODE_METRICS, *metric.RUN_METRICS)]
    assert len(set(served)) == len(served)
    for item in (*metric.NODE_METRICS, *metric.RUN_METRICS):
        assert re.fullmatch(r"distrl_[a-z_]+", item.served)
        assert item.served.endswith("_total") == (item.kind == "counter"), item.served
        assert item.meaning[0].isupper() or item.meaning[0].isdigit()


@pytest.mark.parametrize(("page", "line"), list(command_lines()))
def test_a_command_in_the_guides_is_one_that_exists(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    if not words or words[0] == ".":
        return
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert {argument for argument in arguments if "=" not in argument} <= set(targets)
        extra = [argument.partition("=")[2] for argument in arguments if argument.startswith("ARGS=")]
        program, arguments = ".venv/bin/distrl", ["demo", *shlex.split(extra[0])] if extra else []
    if program in ("cp", "docker"):
        source = arguments[0] if program == "cp" else arguments[arguments.index("-f") + 1]
        assert (ROOT / source).is_file(), f"{page}: {line}"
        return
    roots = {".venv/bin/distrl": distrl, ".venv/bin/distrl-node": distrl_node}
    assert program in roots, f"{page}: {line}"
    _parse(roots[program], arguments)


def _parse(command: click.Command, arguments: list[str]) -> None:
    """Read the arguments as click would, down to the last subcommand, without running anything."""
    context = click.Context(command, info_name="distrl")
    while isinstance(command, click.Group) and arguments:
        name, *arguments = arguments
        child = command.get_command(context, name)
        assert child is not None, f"no command {name}"
        command = child
    if arguments or not isinstance(command, click.Group):
        command.make_context(command.name, arguments, parent=context)


@pytest.mark.parametrize("page", GUIDES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or ((ROOT / page).parent / target).exists(), target


def test_the_guides_name_no_command_that_is_not_there() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in GUIDES)
    assert set(re.findall(r"`distrl ([a-z]+)", text)) <= set(COMMANDS)
