"""The docker compose stack, checked without an engine: syntax and references as docker compose sees them, and that what the files
name (commands, settings, ports, metrics) is what distrl has.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from program import cache_dir

from distrl.core.cli.main import command as distrl
from distrl.core.cli.node import command as distrl_node
from distrl.core.config import load_config
from distrl.core.contracts.events import ROLES
from distrl.core.contracts.metric import NODE_METRICS

FOLDER = Path(__file__).parents[2] / "compose" / "docker"
PROMETHEUS_SUFFIX = re.compile(r"_(bucket|sum|count)$")
SERIES = re.compile(r"\bdistrl_[a-z_]+")


def example_environment() -> dict[str, str]:
    lines = (FOLDER / "env.example").read_text().splitlines()
    return {line.partition("=")[0]: "set" for line in lines if line and not line.startswith("#")}


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Loads a compose file as docker compose does (compose-go)."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed: the compose file is checked with compose-go")
    program = tmp_path_factory.mktemp("check") / "check"
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOPATH": str(cache_dir() / "go"), "GOTOOLCHAIN": "local"}
    environment["GOFLAGS"] += " -modcacherw"
    subprocess.run(
        [go, "build", "-o", str(program), "."], cwd=FOLDER / "check", env=environment, check=True, timeout=300
    )
    return program


def load(checker: Path, file: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checker, file], env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def project(checker: Path) -> dict[str, Any]:
    done = load(checker, FOLDER / "compose.yaml", example_environment())
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = yaml.safe_load(done.stdout)
    return loaded


@pytest.mark.timeout(400)
def test_it_loads_with_the_variables_of_the_example(project: dict[str, Any]) -> None:
    wanted = {"kafka", "registry", "store", "kafka-ui", "prometheus", "grafana", "evaluator", "prioritizer", "learner"}
    assert wanted <= set(project["services"])


def test_a_missing_secret_and_a_broken_reference_are_refused(checker: Path, tmp_path: Path) -> None:
    for name in example_environment():
        done = load(checker, FOLDER / "compose.yaml", {**example_environment(), name: ""})
        assert done.returncode != 0
        assert name in done.stderr
    text = (FOLDER / "compose.yaml").read_text()
    for good, bad in (
        ("\n  topics:", "\n  topix:"),
        ("source: alerts", "source: alarms"),
        ("restart: on-f", "restrat: on-f"),
    ):
        assert good in text
        (tmp_path / "compose.yaml").write_text(text.replace(good, bad))
        assert load(checker, tmp_path / "compose.yaml", example_environment()).returncode != 0, bad


def test_files_that_it_mounts_are_there_and_ports_are_for_this_machine_alone(project: dict[str, Any]) -> None:
    for config in project["configs"].values():
        assert Path(config["file"]).is_file()
    for service in project["services"].values():
        for volume in service.get("volumes", []):
            assert volume["type"] == "volume" or Path(volume["source"]).exists()
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1"


def test_its_commands_and_its_configuration_are_what_distrl_takes(project: dict[str, Any]) -> None:
    config = load_config(FOLDER / "distrl.toml", environment={})
    roles = set()
    for service in project["services"].values():
        if service.get("image") != "distrl:local":
            continue
        arguments = service.get("command") or []
        if "--role" in arguments:
            roles.add(arguments[arguments.index("--role") + 1])
            overrides = [arguments[i + 1] for i, argument in enumerate(arguments) if argument == "--set"]
            load_config(FOLDER / "distrl.toml", environment={}, overrides=overrides)
            known = CliRunner().invoke(distrl_node, ["--help"]).output
            assert all(argument in known for argument in arguments if argument.startswith("--"))
        else:
            program, *words = service["entrypoint"]
            assert program == "distrl"
            assert CliRunner().invoke(distrl, [*words[:2], "--help"]).exit_code == 0
        for name in service["environment"]:
            load_config(None, environment={name: "text"})
    assert roles == set(ROLES)
    assert config.learner.options["demonstrations"] <= config.collector.demonstrations
    hosts = {"kafka": config.bus.bootstrap[0], "store": config.store.endpoint, "registry": config.registry.url}
    for service, address in hosts.items():
        assert f"{service}:" in address
        assert service in project["services"]


def test_prometheus_scrapes_every_role_where_it_answers(project: dict[str, Any]) -> None:
    port = tomllib.loads((FOLDER / "distrl.toml").read_text())["run"]["http_port"]
    document = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())
    (job,) = document["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    assert discovery["port"] == port
    nodes = {name for name, service in project["services"].items() if "--role" in (service.get("command") or [])}
    assert set(discovery["names"]) == nodes
    for name in nodes:
        assert f":{port}/health/live" in " ".join(project["services"][name]["healthcheck"]["test"])


def test_dashboard_and_alerts_ask_for_series_that_nodes_serve() -> None:
    served = {metric.served for metric in NODE_METRICS}
    dashboard = json.loads((FOLDER / "grafana" / "dashboards" / "distrl.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    asked += [variable["query"]["query"] for variable in dashboard["templating"]["list"]]
    alerts = yaml.safe_load((FOLDER / "prometheus" / "alerts.yml").read_text())
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    names = {PROMETHEUS_SUFFIX.sub("", name) for expression in asked for name in SERIES.findall(expression)}
    assert len(names) > 20
    prefixes = tuple(name for name in served if name.endswith("_"))
    assert not {name for name in names - served if not name.startswith(prefixes)}
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(identities) == len(set(identities))
