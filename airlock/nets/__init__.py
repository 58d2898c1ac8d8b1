"""Networks by name, and the check that one can be trained record by record.

In: a name, the shape of a record and the number of classes. Out: a `torch.nn.Module` that maps a batch to logits.
"""

from airlock.nets.check import check
from airlock.nets.registry import build, build_front, create, default_name, front_names, names

__all__ = ["build", "build_front", "check", "create", "default_name", "front_names", "names"]
