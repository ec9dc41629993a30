"""Plugins: everything in distrl that can be swapped. This is the page for their authors.

A plugin offers things under names that a configuration picks: collectors, evaluators, prioritizers, learners,
policies, devices, task sources. It is a Python module with functions that are marked ``@distrl.hookimpl`` and named after a
hook; each returns registrations, and a registration says how the thing is made. distrl's own parts come through
the same hooks (``distrl.plugins.builtin`` is the longest example).

A whole plugin
--------------

An evaluator that rewards short episodes. Save it as ``brief.py``::

    from collections.abc import Sequence

    import distrl
    from pydantic import Field


    class BriefOptions(distrl.Options):
        most_steps: int = Field(default=5, ge=1, description="steps; a longer episode gets less")


    class Brief:
        name = "brief"
        version = "1"

        def __init__(self, options: BriefOptions, context: distrl.RoleContext) -> None:
            self.most_steps = options.most_steps

        def evaluate(self, batch: Sequence[distrl.Trajectory]) -> Sequence[distrl.Verdict]:
            return [self.judge(trajectory) for trajectory in batch]

        def judge(self, trajectory: distrl.Trajectory) -> distrl.Verdict:
            steps = len(trajectory.steps)
            if trajectory.outcome != "finished":
                return distrl.Verdict(0.0, f"not finished after {steps} steps")
            return distrl.Verdict(min(1.0, self.most_steps / max(steps, 1)), f"{steps} steps")


    @distrl.hookimpl
    def distrl_evaluators() -> Sequence[distrl.Registration[distrl.EvaluatorFactory]]:
        return [distrl.Registration("brief", Brief, BriefOptions, "rewards short episodes")]

Use it as one file, ``distrl run --config run.toml --plugin ./brief.py`` (or ``plugins = ["brief.py"]`` under ``[run]``), and
pick it in the configuration::

    [evaluator]
    plugin = "brief"
    options = { most_steps = 3 }

As a package
------------

Name the module in an entry point of the group ``distrl``; once the package is installed, every command knows it::

    [project.entry-points.distrl]
    brief = "my_package.brief"

``distrl plugins list`` shows every plugin with its source and version, ``distrl plugins show NAME`` its hooks and options. A
plugin that does not load is named there and in the log, and the others work on.

Hooks
-----

*Register* hooks run once in every process that loads plugins, the command line included: be quick, and import what is
heavy in the factory. ``distrl.deferred("my_package.model:Brief")`` is a factory that imports when it is called. If one
raises, the plugin is left out.

===========================  ============================================  ====================================
hook                         the factory gets                              the factory returns
===========================  ============================================  ====================================
``distrl_collectors``        options, ``RoleContext``, ``CollectorParts``  ``Collector``
``distrl_evaluators``        options, ``RoleContext``                      ``Evaluator``
``distrl_prioritizers``      options, ``RoleContext``                      ``Prioritizer``
``distrl_learners``          options, ``RoleContext``, ``Policy``          ``Learner``
``distrl_policies``          options, ``RoleContext``                      ``Policy`` (or ``TrainablePolicy``)
``distrl_devices``           options, ``RoleContext``, index from 0        ``Device``
``distrl_task_sources``      options, ``RoleContext``                      ``TaskSource``
===========================  ============================================  ====================================

*Observe* hooks look on: once a batch, in the node named, never once a step. If one raises, that is logged and ignored.

===========================  ===========  =================================================================
hook                         node         when
===========================  ===========  =================================================================
``distrl_on_trajectories``   collector    the log has acknowledged the trajectories ``batch``
``distrl_on_rewards``        evaluator    the log has acknowledged the verdicts ``batch``
``distrl_on_priorities``     prioritizer  the log has acknowledged ``priorities``, by trajectory id
``distrl_on_update``         learner      one update was made on top of ``version``, with ``result``
``distrl_on_weights``        both         learner: ``update`` was published; collector: swapped in
===========================  ===========  =================================================================

A hook may leave out arguments that it does not need; others than these are refused. ``distrl.plugins.spec`` has the
signatures, and the contracts (``distrl.Evaluator`` and so on) say what each method promises.

Options
-------

A subclass of ``distrl.Options`` (a pydantic model), filled from the ``options`` table of the section that picks the
plugin. Give every field a default and its unit. Unknown keys and wrong values are refused with the key's name
before anything starts. Keep the class in a module without heavy imports.

Errors
------

Raise a ``distrl.DistrlError`` for what you foresee: its ``retriable`` says whether the runtime tries again, and a record that
cannot be handled goes to the dead letters while the role goes on. Take time from ``context.clock``, randomness from
``context.random``, files from ``context.work_dir``, screenshots from ``context.artefacts``.

Tests
-----

``distrl.testing`` checks your class against its contract and runs it in memory, on events that went through the codec::

    from distrl.testing import check_evaluator, make_context, make_trajectory, run_evaluator

    def test_brief(tmp_path):
        evaluator = Brief(BriefOptions(), make_context(tmp_path))
        check_evaluator(evaluator)
        [reward] = run_evaluator(evaluator, [make_trajectory(steps=2)])
        assert reward.success == 1.0
"""
