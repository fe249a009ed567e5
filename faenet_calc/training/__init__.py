"""Learning (L3): data, statistics, losses, metrics, the training loop, and the label factory."""
