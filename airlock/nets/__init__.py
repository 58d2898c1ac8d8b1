"""Networks by name, and the check that a network can be trained per sample.

In: a name, the shape of a record and the number of classes. Out: a `torch.nn.Module` that maps a batch to logits.

    registry     networks by name, those of other packages, the user's own, also in memory, and their seeds
    classifiers  small networks that are trained from scratch
    compact      the all-convolutional family of RONA: large teachers, small students
    wide_resnet  WRN-16-4 and WRN-40-4 with GroupNorm and standardised weights
    check        whether a network can be trained per sample
    frontend     frozen front ends with a linear head, and their whitening
    hugging_face networks of transformers, from a folder, and what of them is trained
    domain       made-up records such as a network takes
    tables       the columns of a table as features: steps of numbers, categories, products of two columns
    scattering   wavelet features, with nothing learned
    backbones    VGG, ResNet-18, EfficientNet-lite0 and a compact residual network
    bert         BERT's encoder: MiniLM-L6 as a front end of texts, and small ones as students
    stages       layers of a front end that can be cut off and narrowed
    prefix       a public network cut after a layer, with some of its channels
    privynet     PrivyNet's two networks: one classifies features, one reconstructs images from them
    hints        the output of a layer inside a network, for a student to match
    synthetic    random soft shapes as public images
"""

from typing import TYPE_CHECKING

from airlock import lazy

if TYPE_CHECKING:
    from airlock.nets.check import check
    from airlock.nets.registry import (
        MEMORY,
        build,
        build_front,
        create,
        default_name,
        held,
        held_mark,
        held_net,
        is_built_in,
        is_foreign,
        is_front,
        names,
        others,
        public_name,
        register,
    )

__all__ = [
    "MEMORY",
    "build",
    "build_front",
    "check",
    "create",
    "default_name",
    "held",
    "held_mark",
    "held_net",
    "is_built_in",
    "is_foreign",
    "is_front",
    "names",
    "others",
    "public_name",
    "register",
]

lazy.load(__name__)
