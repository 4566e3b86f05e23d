"""The paper's tables of mappings, counted anew: Table 5, Table 6 and section 7.5.

>>> [row.code for row in table6() if not row.agrees and not row.deviates]
[]
"""

from amos.reproduce.accelerators import AcceleratorRow, accelerators
from amos.reproduce.table5 import PRINTED, Table5Row, table5
from amos.reproduce.table6 import Table6Row, table6

__all__ = [
    "PRINTED",
    "AcceleratorRow",
    "Table5Row",
    "Table6Row",
    "accelerators",
    "table5",
    "table6",
]
