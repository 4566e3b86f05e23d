"""Networks: models in; groups, a report, and compiled networks out."""

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
