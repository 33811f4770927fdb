"""Backbones: the models trained on observed data that self-training starts from, one a file."""
