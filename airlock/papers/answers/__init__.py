"""Lu et al. 2021, the convexified loss, as published.

The docstring of `published` says what the paper claims and what is wrong with it.

    published  the method, its settings and its case for the court; its claim fails
    neuron     its noise on one output neuron
    formulas   its figures, from a network's sizes, and the noise of DP-SGD that it compares them with
"""
