"""What the experiments are built of: networks, likelihoods, estimators of their own, and measures."""
