"""Settings of all tests: no time limits, the machine may be busy."""

from hypothesis import settings

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
