"""Contract suites and helpers for tests, drills and plug-ins; import its modules by name."""

__all__ = ()
