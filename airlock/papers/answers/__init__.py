"""Lu et al. 2021, the convexified loss, as published.

The docstring of `published` says what the paper claims and what is wrong with it.

    published     the method; its claim fails
    settings      its settings
    case          its case for the court
    neuron        its noise on one output neuron
    formulas      its figures, from a network's sizes
    dp_sgd_noise  the noise of DP-SGD that the paper compares itself with
"""
