"""Frozen public front ends: trained on public images, sized, profiled, characterised and applied.

All that they learn from is public.

    front                  front ends by name: sized for a plan, made ready for a release
    public                 settings, where public images come from, and their covariance
    pretrain               a trunk trained on public images, once, and kept in the cache
    features               records as features, and maps projected to a few numbers
    extract                records through a front end into shards of features
    downstream_classifier  the receiver's classifier, from released features alone
    characterise           what features give away and what they are good for, on public data
    probe_networks         the classifiers and reconstructors that judge front ends
    characterised          all that was measured of a front end, from a config and kept as one file
    choose                 how many layers and channels, from limits on PSNR, time and storage
    prune                  which channels may leave
    lda                    how well each channel by itself tells the classes apart
    profiling              time and storage on this machine
"""
