"""Xiang et al. 2019, "Differentially-Private Deep Learning from an Optimization Perspective", as published.

The docstring of `published` says what the paper claims and what is wrong with it.

    published        the method, its settings and its case for the court; its claim fails
    optimised_noise  its budget per iteration, its noise shape, and gradients with that noise
"""
