"""Frozen public front ends: trained on public images, sized, profiled, characterised and applied.

They are trained only on public data.

    front                  front ends by name: sized for a plan, made ready for a release
    public                 settings, the source of public images, and their features' covariance
    pretrain               a trunk trained on public images, once, and cached
    features               records as features, and maps projected to a few numbers
    cut_points             where a table's numbers are cut: counts of their values, and cut points from these
    extract                records through a front end into shards of features
    downstream_classifier  the receiver's classifier, from released features alone
    characterise           what features reveal and how useful they are, on public data
    probe_networks         the classifiers and reconstructors that evaluate front ends
    characterised          all that was measured of a front end, from a config and kept as one file
    choose                 how many layers and channels, from limits on PSNR, time and storage
    prune                  which channels may leave
    lda                    how well each single channel separates the classes
    profiling              time and storage on this machine
"""
