"""Machines as facts: levels, rates and limits; the catalogue, and the CPU we run on."""

from amos.machine import catalogue
from amos.machine.gpu_costs import GpuCosts
from amos.machine.machine import Costs, Level, Machine, Peak
from amos.machine.makers import fitted_costs

__all__ = ["Costs", "GpuCosts", "Level", "Machine", "Peak", "catalogue", "fitted_costs"]
