"""Pure functions on bare arrays and tensors. They import numpy, torch and the registry, and nothing else.

The numpy files (agreement, calibration, figures, overoptimisation, ranks, stats, strengths, variety) work without torch.
"""
