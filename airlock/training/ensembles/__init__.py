"""Many models trained together: stacked on one device, in chunks, or on a Ray cluster; and their alignment.

There is no privacy mechanism here: every model may memorise its records, and all of them stay in the vault.

    ensemble          many models trained together, optionally from a common start
    chunks            which models are trained together, what is saved, and which engine trains them
    stacked           networks of one shape as one, with one gradient step for all
    own_layers        adapters and heads of many networks on one frozen base, which sees all their records at once
    stacked_layers    convolutions and poolings of many networks on a GPU
    stacked_kernels   their Triton kernels; imported only if Triton is installed
    ray_engine        chunks trained by a Ray cluster: the driver and its workers
    ray_cluster       the cluster: an existing one, or one started for the call
    checkpoint_store  models on disk, read one parameter at a time
    align             permutation alignment, and which units may be permuted
"""
