"""Registers the devices and task sources that lie in ``connectors``, through the same hooks as a stranger's plugin.

Named by the entry point ``devices`` in the group ``distrl``; one line each, imported when it is made, not before.
"""

from __future__ import annotations

from collections.abc import Sequence

from distrl.connectors.appium.option import AppiumOptions
from distrl.connectors.miniwob.option import MiniWobOptions
from distrl.connectors.simulated_phone.option import PhoneOptions, TaskOptions
from distrl.plugins.deferred import deferred
from distrl.plugins.spec import DeviceFactory, Registration, TaskSourceFactory, hookimpl

HERE = "distrl.connectors"


@hookimpl
def distrl_devices() -> Sequence[Registration[DeviceFactory]]:
    return (
        Registration(
            "simulated-phone",
            deferred(f"{HERE}.simulated_phone.device:SimulatedPhone"),
            PhoneOptions,
            "a phone drawn in memory, with latency and faults to choose",
        ),
        Registration(
            "appium",
            deferred(f"{HERE}.appium.device:AppiumDevice"),
            AppiumOptions,
            "Chromium or an Android phone behind an Appium server",
        ),
    )


@hookimpl
def distrl_task_sources() -> Sequence[Registration[TaskSourceFactory]]:
    return (
        Registration(
            "simulated-phone",
            deferred(f"{HERE}.simulated_phone.task:SimulatedTasks"),
            TaskOptions,
            "open an app, turn a setting on or off, search for words in an app",
        ),
        Registration(
            "miniwob",
            deferred(f"{HERE}.miniwob.task:MiniWobTasks"),
            MiniWobOptions,
            "MiniWoB++ pages in a browser (device appium, evaluator environment)",
        ),
    )
