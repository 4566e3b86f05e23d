"""Arguments that may start anywhere.

TVM takes every argument to be aligned to 64 bytes and emits loads that trap
otherwise. NumPy aligns to 16, slices to one element, so the alignment of a kernel's
arguments is lowered to an element; on aligned data the other loads are as fast.
"""

from __future__ import annotations

import json
from typing import Any

from amos._toolchain import load_tvm

__all__ = ["aligned_to_elements"]


def aligned_to_elements(module: Any) -> Any:
    """The module with every buffer aligned to one byte, as far as its types say.

    A buffer that matches a region of another may not ask for more than that one has,
    so those inside go along; TVM allocates them aligned whatever their types say.
    No pass of TVM changes an alignment, which is part of a type; the serialized form does.
    """
    load_tvm()
    import tvm

    document = json.loads(tvm.ir.save_json(module))
    for node in document["nodes"]:
        if node["type"] == "tirx.BufferType":
            node["data"]["data_alignment"] = 1
    return tvm.ir.load_json(json.dumps(document))
