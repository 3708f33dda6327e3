"""Figures: what the guard costs and how fast it is, as ratios against a peer in the same run."""
