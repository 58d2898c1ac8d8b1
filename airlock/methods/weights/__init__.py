"""`weights`: a model trained under noise leaves, with all its weights.

The file of a method holds its proof; its settings and its case for the court lie next to it.

    gaussian             DP-SGD
    shaped               noise shaped like the clipping
    noise_shape          that shape, from public records
    head                 a private linear head on public features
    head_case            its case
    canaries             its canaries
    features             private records as features, computed once
    training             what the methods share
    settings             defaults by data set
    proxy                synthetic records that stand in for public ones
"""
