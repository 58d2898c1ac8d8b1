"""Who made a bundle, and who approved it.

In: a bundle's folder and the keys that somebody trusts. Out: `model.sig`, the holder's signature over every file, in
the format of OpenSSF model signing, so that its own tool accepts it; `approval.sig`, the reviewer's decision over the
same files; and for a receiver, who made which of the two.

    keys        private and public keys, the vault's own, and the file of trusted ones
    envelope    the format: a signed statement about the files of a bundle, written and strictly parsed
    signatures  who signed a bundle, and who countersigned it
    approval    a reviewer's decision becomes a countersignature
"""
