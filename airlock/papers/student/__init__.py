"""Wang et al. 2019, RONA, as published.

The docstring of `published` says what the paper claims and what is wrong with it.

    published  the method; its claim fails
    sanitise   its noise, which protects nothing
    case       its case for the court
"""
