"""Cards and dossiers as people and other programs read them: sentences, pages, figures, SACRO.

All of it follows from a card or a dossier, so that it can be made again and compared.

    text        sentences, which follow from the figures
    formatting  numbers as a reviewer reads them, harm rounded up
    page        the card as a page and as a model card, the dossier's page, and how templates are rendered
    svg         what all figures share: elements, axes, files
    charts      curves of ε, choices of a front end and ROC curves
    sacro       the audit in the layout of SACRO-ML's report
"""
