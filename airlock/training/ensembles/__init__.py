"""Many models trained together: stacked on one device, in chunks, on a Ray cluster; and brought into one order.

There is no privacy here: every model remembers its records, and all of them stay in the vault.

    ensemble          many models trained together, and a start they may have in common
    chunks            which models are trained at once, what is kept of them, and who trains them
    stacked           networks of one shape as one, with one gradient step for all
    stacked_layers    convolutions and pools of many networks on a GPU
    stacked_kernels   their Triton kernels; imported only where Triton is
    ray_engine        chunks trained by a Ray cluster: the driver and its workers
    ray_cluster       the cluster: one to join, or one of our own
    checkpoint_store  models on disk, read one parameter at a time
    align             units brought into one order, and which of them may be exchanged
"""
