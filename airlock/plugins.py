"""What others bring: a method in a package of its own, found by its entry point.

A package names it in its pyproject.toml, and `airlock plan`, `release`, `audit`, `court`, `compare` and `advise` know
it:

    [project.entry-points."airlock.methods"]
    "weights/class-means" = "class_means:ClassMeans"

Names are read when Airlock starts; nothing is imported before it is asked for. A name that Airlock has itself, or whose
form is not CHANNEL/METHOD, is left out.
"""

from __future__ import annotations

from importlib.metadata import entry_points

METHODS = "airlock.methods"


def methods(own: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The table of methods, channel by channel, with what others registered after what is there.

    Args:
        own: Channel, method, and where it is as `package.module:Class`.
    """
    table = {channel: dict(found) for channel, found in own.items()}
    for entry in sorted(entry_points(group=METHODS), key=lambda entry: entry.name):
        channel, slash, method = entry.name.partition("/")
        if slash and method and channel in table:
            table[channel].setdefault(method, entry.value)
    return table
