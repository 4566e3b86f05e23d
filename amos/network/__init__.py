"""Networks: models in; groups, a report, and compiled networks out.

The way of a model, in the order in which to read the files:

1. ``loading``, ``external/partition``: a model is read (``reading/``) as a graph (``graph``,
   ``operations``) and divided into regions (``external/regions``); onnxruntime runs the rest.
2. ``network``: the graph of a region goes through the passes (``passes/sequence``). ``groups``
   divides it: an anchor (``anchors``) and its ``followers`` are a group, equal groups are a task.
3. ``compilation``: ``precision/`` chooses which products are rounded. ``lowerings/choosing`` ranks
   how a task can be computed, ``lowerings/fused`` finds tasks that are faster as one chain.
   ``kernels`` builds and checks their kernels, on all cores.
4. ``external/linking``: kernels, and ``loops/`` for all other nodes of regions, become a library
   (``external/library``). Each region is raced against onnxruntime (``external/race``).
5. ``external/compiled``: the model that is called; ``bucketed`` holds one for each size.

``tuning`` measures kernels into records, ``reporting`` predicts a network, ``pytorch/`` reads and
compiles modules of PyTorch.
"""

from amos.network.bucketed import CompiledBuckets
from amos.network.buckets import BucketedNetwork
from amos.network.compilation import compile_network as compile
from amos.network.external.compiled import CompiledNetwork
from amos.network.external.partition import PartitionedNetwork
from amos.network.groups import Group, Task
from amos.network.loading import load_network
from amos.network.network import Network
from amos.network.report import Report
from amos.network.tuned import Tuning
from amos.network.tuning import tune

__all__ = [
    "BucketedNetwork",
    "CompiledBuckets",
    "CompiledNetwork",
    "Group",
    "Network",
    "PartitionedNetwork",
    "Report",
    "Task",
    "Tuning",
    "compile",
    "load_network",
    "tune",
]
