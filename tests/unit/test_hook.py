"""The hooks are frozen: a renamed hook or argument breaks every plugin that is out there."""

from __future__ import annotations

import inspect

from distrl.plugins.manager import KINDS, OBSERVE_HOOKS, REGISTER_HOOKS
from distrl.plugins.spec import ObserveSpec, RegisterSpec

REGISTER = {
    "distrl_collectors": "collector",
    "distrl_evaluators": "evaluator",
    "distrl_prioritizers": "prioritizer",
    "distrl_learners": "learner",
    "distrl_policies": "policy",
    "distrl_devices": "device",
    "distrl_task_sources": "task_source",
}
OBSERVE = {
    "distrl_on_trajectories": ["batch"],
    "distrl_on_rewards": ["batch"],
    "distrl_on_priorities": ["priorities"],
    "distrl_on_update": ["version", "result"],
    "distrl_on_weights": ["update"],
}


def arguments(spec: type) -> dict[str, list[str]]:
    return {
        name: [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
        for name, function in vars(spec).items()
        if hasattr(function, "distrl_spec")
    }


def test_register_hooks_are_these_and_take_nothing() -> None:
    assert arguments(RegisterSpec) == {name: [] for name in REGISTER}
    assert REGISTER_HOOKS == REGISTER
    assert tuple(REGISTER.values()) == KINDS


def test_observe_hooks_are_these_with_these_arguments() -> None:
    assert arguments(ObserveSpec) == OBSERVE
    assert set(OBSERVE_HOOKS) == set(OBSERVE)


def test_every_hook_says_where_it_runs() -> None:
    for spec in (RegisterSpec, ObserveSpec):
        for name in arguments(spec):
            assert "node" in (inspect.getdoc(getattr(spec, name)) or "")


def test_every_hook_is_on_the_page_for_authors() -> None:
    import distrl.plugins

    page = distrl.plugins.__doc__ or ""
    for name in (*REGISTER, *OBSERVE):
        assert f"``{name}``" in page
