"""Registers the devices and task sources that lie in ``connectors``, through the same hooks as a stranger's plugin.

Named by the entry point ``devices`` in the group ``distrl``; one line each, imported when it is made, not before.
"""

from __future__ import annotations

from collections.abc import Sequence

from distrl.plugins.spec import DeviceFactory, Registration, TaskSourceFactory, hookimpl


@hookimpl
def distrl_devices() -> Sequence[Registration[DeviceFactory]]:
    return ()


@hookimpl
def distrl_task_sources() -> Sequence[Registration[TaskSourceFactory]]:
    return ()
