"""What a house lets out: its policy, as a file, and the rules that hold a release against it.

In: a `policy.toml`, and what is known about a release. Out: a frozen `Policy`, and one `Finding` for every rule that is
violated or could not be checked. The gate's own limits are the policy `Policy()`: there is no second list.

    tables    the policy as frozen tables, read from TOML and printed as TOML with a comment for each key
    rules     one rule for each key: what was found, and what is allowed
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.bundle.policy.rules import RULES as RULES
    from airlock.bundle.policy.rules import Evidence as Evidence
    from airlock.bundle.policy.rules import Finding as Finding
    from airlock.bundle.policy.rules import judge as judge
    from airlock.bundle.policy.tables import Policy as Policy
    from airlock.bundle.policy.tables import changes as changes
    from airlock.bundle.policy.tables import load as load
    from airlock.bundle.policy.tables import to_toml as to_toml

__all__ = [
    "RULES",
    "Evidence",
    "Finding",
    "Policy",
    "changes",
    "judge",
    "load",
    "to_toml",
]

lazy.load(__name__)
