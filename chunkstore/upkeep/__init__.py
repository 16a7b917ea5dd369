"""Upkeep: what keeps a container small, quick and sound while it is in use. ``calls`` has the methods that a store offers."""
