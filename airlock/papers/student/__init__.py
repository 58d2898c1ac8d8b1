"""Wang et al. 2019, RONA, as published.

The docstring of `published` says what the paper claims and what is wrong with it.

    published  the method, its noise, its settings and its case for the court; its claim fails
"""
