"""The sentences about attacks on features: what comes back, whose front end it was, what else features tell."""

from __future__ import annotations

from airlock.bundle.feature_schema import Named, OnFeatures, Rebuilt, Told

WHO = {
    "features": "An attacker who does not know the front end, but {known} records with their features,",
    "front": "An attacker who knows the front end and {known} other records",
}
REBUILT = (
    "{who} rebuilds pictures at {psnr} dB ({low} to {high}; {name}); guessing without the features gives {blind} dB. "
    "More dB is closer to the original."
)
NOTHING = (
    "{who} rebuilds pictures at {psnr} dB ({low} to {high}; {name}), no better than the {blind} dB of guessing without "
    "the features, as far as {images} pictures can tell (from {smallest} dB on)."
)
SHARE = (
    "Of {images} pictures {share} come back at {threshold} dB or more ({low} to {high} with {confidence} confidence); "
    "guessing without the features: {blind}."
)
NAMED = (
    "With {known} and {whose} features, someone who tries {candidates} public nets and layers names the "
    "right one, and {right} of the {live} channels that can be told apart: keeping the front end secret is no "
    "protection."
)
NOT_NAMED = (
    "With {known} and {whose} features, someone who tries {candidates} public nets and layers names "
    "{right} of the {live} channels that can be told apart."
)
TOLD = (
    "Whether {attribute}: right {value} of the time with the features ({low} to {high}), {blind} from the label alone."
)
FOUND = (
    "Whoever has a record and the front end computes its features and finds them among the released ones: nothing "
    "hides that a record was used."
)
SCOPE = (
    "Pictures and attributes were measured on holdout records sent through the same front end and noise, not on those "
    "whose features left. A better attacker may find more."
)


def write(found: OnFeatures | None) -> tuple[str, ...]:
    """Every sentence, the strongest attacker of each kind first; none where no features were attacked."""
    if found is None:
        return ()
    best = [_best(found, view) for view in ("front", "features")]
    lines = [_rebuilt(one) for one in best if one is not None]
    lines += [_share(found.best)] if found.best else []
    lines += [_named(found.identification)] if found.identification else []
    lines += [_told(one) for one in found.attributes]
    lines += [FOUND] if found.found_by_lookup else []
    return (*lines, SCOPE) if lines else ()


def _best(found: OnFeatures, view: str) -> Rebuilt | None:
    return max((one for one in found.reconstructions if one.view == view), key=lambda one: one.psnr, default=None)


def _rebuilt(one: Rebuilt) -> str:
    return (REBUILT if one.beats_blind else NOTHING).format(
        who=WHO[one.view].format(known=f"{one.known:,}"),
        name=one.name,
        psnr=f"{one.psnr:.1f}",
        low=f"{one.low:.1f}",
        high=f"{one.high:.1f}",
        blind=f"{one.blind_psnr:.1f}",
        images=f"{one.images:,}",
        smallest=f"{one.smallest_effect:.1f}",
    )


def _share(one: Rebuilt) -> str:
    return SHARE.format(
        images=f"{one.images:,}",
        share=f"{one.share:.1%}",
        threshold=f"{one.threshold:g}",
        low=f"{one.share_low:.1%}",
        high=f"{one.share_high:.1%}",
        confidence=f"{one.confidence:.0%}",
        blind=f"{one.blind_share:.1%}",
    )


def _named(one: Named) -> str:
    """With the fewest known records that name the net and all its channels, else with the most."""
    whole = [i for i, ok in enumerate(one.net_right) if ok and one.live[i] and one.right[i] == one.live[i]]
    place = whole[0] if whole else len(one.known) - 1
    return (NAMED if one.net_right[place] and one.right[place] else NOT_NAMED).format(
        known="1 known record" if one.known[place] == 1 else f"{one.known[place]} known records",
        whose="its" if one.known[place] == 1 else "their",
        candidates=one.candidates,
        right=one.right[place],
        live=one.live[place],
    )


def _told(one: Told) -> str:
    figures = {key: f"{getattr(one, key):.1%}" for key in ("value", "low", "high", "blind")}
    return TOLD.format(attribute=one.attribute, **figures)
