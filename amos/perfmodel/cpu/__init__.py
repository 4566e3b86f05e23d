"""What CPUs and their compilers add to the traffic of a nest."""

__all__ = ()
