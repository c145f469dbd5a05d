"""Building blocks of the experiments: networks, likelihoods, estimators and metrics."""
