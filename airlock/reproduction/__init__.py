"""The five papers' tables and figures, run again: every run is kept as a row, and a page compares them with the paper.

A paper is a value (`Paper`): its experiments, which turn a trial into figures, and its items, the tables and figures,
each of which names the trials that it needs and says what their rows show. Rows are kept one by one, so that a run can
be interrupted and resumed; a page is rendered from rows and a template alone, and nothing on it is typed by hand.

    paper         what a paper is made of: trials, experiments, items, rows
    noise_levels  DP-SGD at many noise levels at once
    run           which trials are missing, the file of rows, and the page
    weights       Xiang, Yang and Li 2019, optimised additive noise
    twin          Mao et al. 2020, DP-PG and DP-PGP
    student       Wang et al. 2019, RONA
    features      Li et al. 2017, PrivyNet
    answers       Lu et al. 2021, the convexified loss
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.reproduction.paper import Found, Item, ItemResult, KeptRow, Paper, Trial, Workplace
    from airlock.reproduction.run import PAPERS, Reproduced, chosen_items, named_paper, rendered, reproduce

__all__ = [
    "PAPERS",
    "Found",
    "Item",
    "ItemResult",
    "KeptRow",
    "Paper",
    "Reproduced",
    "Trial",
    "Workplace",
    "chosen_items",
    "named_paper",
    "rendered",
    "reproduce",
]

lazy.load(__name__)
