"""A rank's step as one printed program, recorded from an eager step."""
