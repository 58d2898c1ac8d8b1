"""Clipped per-sample gradients: what one record adds to a sum is bounded, for whatever network a user brings.

engine          the sum of a lot, in chunks of one size; chooses and remembers who computes it
self_check      whom to trust with a network: shown and tried on made-up records
record_axis     follows the records through every operator of a pass, by the rules in operator_rules
bookkeeping     one forward, one backward pass, layer by layer (layers); as CUDA graphs (graphs, conv_kernel)
functional      every record's gradient by torch.func
one_by_one      ordinary backward passes over single records: slow, and right for every network
sums            norms and sums in float64, and the bound on their rounding
sealed          a network as it was before a record went through it
norms           the norms themselves, for attacks
forward         what a network says of every record by itself
"""

from airlock.training.per_sample.engine import clipped_sum, copies_in, use_of
from airlock.training.per_sample.forward import outputs

__all__ = ["clipped_sum", "copies_in", "outputs", "use_of"]
