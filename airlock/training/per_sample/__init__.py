"""Clipped per-sample gradients: one record's contribution to a sum is bounded, for any network a user brings.

The ways to compute it differ only in speed: each is shown to be correct for a network before any record is seen.

    engine          the sum over a lot, in chunks of one size; chooses and caches the implementation
    sharded         the sum over a lot where parameters are in shards
    self_check      which implementation to trust with a network: shown and tested on made-up records
    record_axis     tracks the records through every operator of a pass
    operator_rules  what every operator does to the records' axis
    bookkeeping     one forward and one backward pass, layer by layer
    layers          per-record gradients of one layer
    graphs          book-keeping as a CUDA graph
    conv_kernel     a convolution's per-record gradients as a Triton kernel
    people          people with several rows: sums over a person's rows
    people_kernels  these sums on a GPU, by Triton
    functional      every record's gradient by torch.func
    one_by_one      ordinary backward passes over single records: slow, but correct for every network
    sums            norms and sums in float64, and the bound on their rounding
    sum_kernels     those sums as Triton kernels
    sealed          restores a network to its state before a record went through it
    norms           the norms themselves, for attacks
    forward         a network's output for every record independently
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.training.per_sample.engine import clipped_sum, copies_in, use_of
    from airlock.training.per_sample.forward import outputs

__all__ = ["clipped_sum", "copies_in", "outputs", "use_of"]

lazy.load(__name__)
