"""What tests, drills and plug-ins check themselves with; import its modules by name."""

__all__ = ()
