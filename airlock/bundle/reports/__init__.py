"""A release in the form that others ask for: a DPIA annex, a NIST SP 800-226 sheet, a registry entry.

In: a card, and the dossier where the document stays inside. Out: a `Report`, or files. Every value says where it comes
from: a path in the card or in the dossier. Without the dossier nothing of it is in a document, and what was not
measured is said to be not measured.

    quoting     values with their sources, and the report that holds them
    dpia        an annex for a data protection impact assessment, by EDPB Opinion 28/2024
    nist        the differential privacy pyramid of NIST SP 800-226, layer by layer
    registry    an entry for the registry of differential privacy deployments
    writing     a report as JSON, Markdown or a page, and files of every kind
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.bundle.reports.quoting import Report as Report
    from airlock.bundle.reports.writing import FORMS as FORMS
    from airlock.bundle.reports.writing import check as check
    from airlock.bundle.reports.writing import make as make
    from airlock.bundle.reports.writing import write as write

__all__ = [
    "FORMS",
    "Report",
    "check",
    "make",
    "write",
]

lazy.load(__name__)
