"""`student`: a compact model leaves, distilled from a teacher that stays."""
