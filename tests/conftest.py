"""One hypothesis profile for every test: the same examples in each run, and no deadline on a shared machine."""

from hypothesis import settings

settings.register_profile("kvlab", derandomize=True, deadline=None)
settings.load_profile("kvlab")
