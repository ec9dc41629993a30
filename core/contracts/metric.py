"""Names of the numbers on the topic ``metrics``. Producers and readers take them from here.

A share is a part of the interval that the event covers, from 0 to 1. What a learner plugin reports
gets the prefix ``learner.``.
"""

from __future__ import annotations

BUSY_SHARE = "busy_share"
"""Collector: with an episode in hand. Learner: inside updates. Evaluator, prioritizer: handling records."""
WAIT_SHARE = "wait_share."
"""Prefix; the rest names what the role waited for (``WAITS``)."""
WAITS = ("weights", "allowance", "devices", "log", "store", "trajectories", "demonstrations", "verdicts")
LAG = "lag."
"""Prefix; records that the node's group has not read of the topic that follows."""
QUEUE_AGE_MS = "queue_age_ms"
"""Age of the oldest record handled in the interval, when it was handled."""
HANDLED = "handled"
"""Records handled in the interval."""
DUPLICATES = "duplicates"
"""Records of the interval that had been handled before."""
DEAD_LETTERS = "dead_letters"
OUTBOX = "outbox_episodes"
"""Finished episodes that the log has not acknowledged yet."""
EPISODES = "episodes"
"""Episodes that ended in the interval, aborted ones included."""
STEPS = "steps"
"""Actions carried out in the interval."""
UNJUDGED = "unjudged"
"""Trajectories let go in the interval because no verdict came in time."""
LEARNER = "learner."
"""Prefix for what a learner plugin reports."""
BUFFER = LEARNER + "buffer.trajectories"
"""Trajectories in a learner plugin's buffer; reported by those that have one."""
WITHHELD = LEARNER + "withheld"
"""Trajectories that became too old to sample, since the run began: a total. Reported by plugins that withhold."""
