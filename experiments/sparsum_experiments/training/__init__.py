"""Training and evaluating one model: the loop, captured steps, and what an epoch logs."""
