"""The paper's tables of mappings, counted again: Table 5, Table 6 and section 7.5."""

from amos.reproduce.accelerators import AcceleratorRow, accelerators
from amos.reproduce.gta_fig8 import Fig8Row
from amos.reproduce.gta_fig8 import fig8 as gta_fig8
from amos.reproduce.gta_fig10 import Fig10Row
from amos.reproduce.gta_fig10 import fig10 as gta_fig10
from amos.reproduce.heron_fig12 import METHODS as HERON_METHODS
from amos.reproduce.heron_fig12 import Fig12
from amos.reproduce.heron_fig12 import fig12 as heron_fig12
from amos.reproduce.heron_table5 import HeronTable5Row, heron_table5
from amos.reproduce.table5 import PRINTED, Table5Row, table5
from amos.reproduce.table6 import Table6Row, table6

__all__ = [
    "HERON_METHODS",
    "PRINTED",
    "AcceleratorRow",
    "Fig8Row",
    "Fig10Row",
    "Fig12",
    "HeronTable5Row",
    "Table5Row",
    "Table6Row",
    "accelerators",
    "gta_fig8",
    "gta_fig10",
    "heron_fig12",
    "heron_table5",
    "table5",
    "table6",
]
