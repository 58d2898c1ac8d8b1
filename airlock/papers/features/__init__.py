"""PrivyNet, as published.

The docstring of `published` says what the paper claims and what is wrong with it.

    published  the method; nothing is promised
"""
