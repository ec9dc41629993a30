"""A phone drawn in memory, with its own tasks: what the demo, the tests and the benchmarks run on.

``device`` holds the phone, ``task`` the task source, ``option`` their settings (importable without numpy),
``ledger`` what the phone itself knows of finished episodes, told apart from the log so that a loss can be proved.
Inside: ``catalogue`` (apps, switches, words), ``layout`` (a start state), ``state`` (what taps do),
``widget`` (what lies where), ``art`` and ``glyph`` (pixels), ``fault`` (slowness and failures).
"""
