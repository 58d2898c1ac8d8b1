"""Networks by name, and the check that one can be trained record by record.

In: a name, the shape of a record and the number of classes. Out: a `torch.nn.Module` that maps a batch to logits.
"""

from airlock.nets.check import check
from airlock.nets.registry import build, create, default_name, names

__all__ = ["build", "check", "create", "default_name", "names"]
