"""Xiang et al. 2019, "Differentially-Private Deep Learning from an Optimization Perspective", as published.

The docstring of `published` says what the paper claims and what is wrong with it.

    published            the method; its claim fails
    optimised            its budget per iteration and its noise shape
    optimised_gradients  gradients with that noise
"""
