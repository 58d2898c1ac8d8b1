"""The five papers' methods exactly as published, each with its claim recorded as a claim.

They enter through the door that is open to everybody: entry points in pyproject.toml (`plugins`). No room imports this
one. What a paper's method shares with a sound one lies in `methods`.

    weights/   optimised additive noise, Xiang et al. 2019
    twin/      DP-PG and DP-PGP, Mao et al. 2020, and its sampler in a sound form
    student/   RONA, Wang et al. 2019
    features/  PrivyNet
    answers/   the convexified loss, Lu et al. 2021
"""
