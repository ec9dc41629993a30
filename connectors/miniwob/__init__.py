"""MiniWoB++ (MIT): small web tasks, drawn from a seed, that say themselves what is to be done and how it went.

``task`` is the task source, ``page`` starts a page's episode in a browser and reads its state. The pages come from the wheel
``miniwob``, of which no Python is imported. Works with the device ``appium`` on Chromium.
"""
