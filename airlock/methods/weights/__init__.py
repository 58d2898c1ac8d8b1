"""`weights`: a model trained under noise leaves, with all its weights.

The file of a method holds its settings, its proof and its case for the court.

    gaussian    DP-SGD; also what every method that trains a whole network shares
    recipe      what DP-SGD is run with where nothing is set, from public facts
    head_first  the last layer of a network that brings weights, trained alone before the rest
    shaped      noise shaped like the clipping
    head        a private linear head on fixed features
    features    all private records as features, and what about them is released before a head is trained
"""
