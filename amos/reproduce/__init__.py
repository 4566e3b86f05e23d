"""The paper's tables of mappings, counted again: Table 5, Table 6 and section 7.5."""

from amos.reproduce.accelerators import accelerators
from amos.reproduce.gta_fig8 import fig8 as gta_fig8
from amos.reproduce.gta_fig10 import fig10 as gta_fig10
from amos.reproduce.heron_fig12 import METHODS as HERON_METHODS
from amos.reproduce.heron_fig12 import fig12 as heron_fig12
from amos.reproduce.heron_table5 import heron_table5
from amos.reproduce.table5 import PRINTED, table5
from amos.reproduce.table6 import table6

__all__ = [
    "HERON_METHODS",
    "PRINTED",
    "accelerators",
    "gta_fig8",
    "gta_fig10",
    "heron_fig12",
    "heron_table5",
    "table5",
    "table6",
]
