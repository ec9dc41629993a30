"""The test kit for authors of plugins.

``make_…`` builds events, observations, tasks and a context; ``run_…`` and ``Pipeline`` run plugins in memory on events
that went through the codec; ``check_…`` holds a plugin to its contract and raises ``AssertionError`` with what is broken. Needs
no server and no pytest.
"""

from distrl.plugins.testkit.context import ManualClock, MemoryArtefacts, make_context
from distrl.plugins.testkit.pipeline import (
    Pipeline,
    Run,
    over_the_log,
    run_collector,
    run_evaluator,
    run_prioritizer,
)
from distrl.plugins.testkit.role_check import (
    check_collector,
    check_evaluator,
    check_learner,
    check_prioritizer,
    sample_trajectories,
)
from distrl.plugins.testkit.sample import (
    make_blob,
    make_envelope,
    make_feedback,
    make_observation,
    make_observation_record,
    make_policy_trajectory,
    make_priority,
    make_reward,
    make_step,
    make_task,
    make_trajectory,
)
from distrl.plugins.testkit.world_check import check_device, check_policy, check_task_source

__all__ = [
    "ManualClock",
    "MemoryArtefacts",
    "Pipeline",
    "Run",
    "check_collector",
    "check_device",
    "check_evaluator",
    "check_learner",
    "check_policy",
    "check_prioritizer",
    "check_task_source",
    "make_blob",
    "make_context",
    "make_envelope",
    "make_feedback",
    "make_observation",
    "make_observation_record",
    "make_policy_trajectory",
    "make_priority",
    "make_reward",
    "make_step",
    "make_task",
    "make_trajectory",
    "over_the_log",
    "run_collector",
    "run_evaluator",
    "run_prioritizer",
    "sample_trajectories",
]
