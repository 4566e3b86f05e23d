"""Searching mapping and schedule together, on the model and on the machine.

The package can be called: ``amos.explore(operator, intrinsic, …)`` is
:func:`amos.explore.run.explore`, or of a chain :func:`amos.chains.explore_chain`.
"""

from amos._callable import make_callable
from amos.explore.exploration import Exploration
from amos.explore.methods import METHODS
from amos.explore.objective import Problem
from amos.explore.options import MeasureOptions, SearchOptions
from amos.explore.run import explore

__all__ = ["METHODS", "Exploration", "MeasureOptions", "Problem", "SearchOptions", "explore"]

make_callable(__name__, "amos._kernels:explore")
