"""Nero (Algorithm 1), the optimisers that Section 5.2 compares it with, and balanced neurons for any optimiser.

Nero's steps are relative to each neuron, LAMB's to each layer, Madam's to each weight. `constrained` adds Nero's
projection to any other optimiser, and `Split` makes one optimiser of several. `nero.optim.reference` is Algorithm 1 in
plain code.
"""

from nero.optim.balance import neuron_mean, neuron_norm, project, project_, project_all_
from nero.optim.constrained import constrained
from nero.optim.lamb import LAMB
from nero.optim.madam import Madam
from nero.optim.nero import Nero
from nero.optim.param_groups import ParamGroups, param_groups
from nero.optim.split import Split

__all__ = [
    "LAMB",
    "Madam",
    "Nero",
    "ParamGroups",
    "Split",
    "constrained",
    "neuron_mean",
    "neuron_norm",
    "param_groups",
    "project",
    "project_",
    "project_all_",
]
