"""What latent variables learned: classes, symbols and bits, each shown in its own way on the page of runs.

A view is made from the checkpoint of a run and its data, or read from the file that ``sparsum record --latent`` wrote.
"""
