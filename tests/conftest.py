"""Shared by all tests: nothing but the settings of hypothesis."""

from hypothesis import settings

# A machine under load is slow, not wrong.
settings.register_profile("inferway", deadline=None)
settings.load_profile("inferway")
