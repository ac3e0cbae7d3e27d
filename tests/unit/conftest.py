"""What all unit tests share."""

from hypothesis import settings

settings.register_profile("kvrelay", deadline=None)  # a loaded machine delays any example
settings.load_profile("kvrelay")
