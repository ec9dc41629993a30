"""Devices behind an Appium server: Chromium on this machine, Android through UiAutomator2.

``device`` is the contract's implementation; ``chromium`` and ``android`` know their platform, ``session`` speaks to
the server and bounds every call, ``gesture`` writes W3C actions, ``hierarchy`` reads Android's UI tree.
Nothing outside this package imports ``appium`` or ``selenium``. ``option`` imports neither.
"""
