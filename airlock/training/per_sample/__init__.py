"""Clipped per-sample gradients: what one record adds to a sum is bounded, for whatever network a user brings.

The ways to compute it differ in speed alone: each is shown to be right for a network before a record is seen.

    engine          the sum of a lot, in chunks of one size; chooses and remembers who computes it
    self_check      whom to trust with a network: shown and tried on made-up records
    record_axis     follows the records through every operator of a pass
    operator_rules  what every operator does to the records' axis
    bookkeeping     one forward and one backward pass, layer by layer
    layers          per-record gradients of one layer
    graphs          book-keeping as a CUDA graph
    conv_kernel     a convolution's per-record gradients as a Triton kernel
    functional      every record's gradient by torch.func
    one_by_one      ordinary backward passes over single records: slow, and right for every network
    sums            norms and sums in float64, and the bound on their rounding
    sum_kernels     those sums as Triton kernels
    sealed          a network as it was before a record went through it
    norms           the norms themselves, for attacks
    forward         what a network says of every record by itself
"""

from airlock.training.per_sample.engine import clipped_sum, copies_in, use_of
from airlock.training.per_sample.forward import outputs

__all__ = ["clipped_sum", "copies_in", "outputs", "use_of"]
