"""Nero, the two optimisers that the paper compares it with, and balanced neurons for any optimiser.

Nero turns each neuron (Algorithm 1); LAMB is relative per layer and Madam per synapse (Section 5.2). `constrained`
keeps the neurons of any other optimiser balanced.
"""

from nero.optim.balance import neuron_mean, neuron_norm, project, project_, project_all_
from nero.optim.constrained import constrained
from nero.optim.lamb import LAMB
from nero.optim.madam import Madam
from nero.optim.nero import Nero

__all__ = [
    "LAMB",
    "Madam",
    "Nero",
    "constrained",
    "neuron_mean",
    "neuron_norm",
    "project",
    "project_",
    "project_all_",
]
