"""What tests, drills and plug-ins check themselves with."""

__all__: list[str] = []
