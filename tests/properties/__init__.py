"""Properties of everything public, over inputs that hypothesis draws, against brute force in float64."""
