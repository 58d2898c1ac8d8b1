"""Cards and dossiers as people and other programs read them: sentences, pages, figures, SACRO.

All of it is derived from a card or a dossier, so it can be rendered again and compared.

    text        sentences, derived from the figures
    formatting  numbers as a reviewer reads them; risks are rounded up
    strength    how strong a proven guarantee is, by what an attacker gains: one table
    page        the card as a page and as a model card, the dossier's page, and how templates are rendered
    svg         what all charts share: elements, axes, files
    charts      curves of ε, choices of a front end and ROC curves
    gate_page   the gate as a page: what to know, what to ask, where to sign
    register_page  what left under a register, for whoever keeps it
    sacro       the audit in the layout of SACRO-ML's report
"""
