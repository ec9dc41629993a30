"""Property tests look at the same examples at every run, so that a change fails them or does not; ``HYPOTHESIS_PROFILE=search``
looks for new ones, with the seed that hypothesis chooses."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=SLOW, print_blob=True
)
settings.register_profile("search", deadline=None, suppress_health_check=SLOW, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
