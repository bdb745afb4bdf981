"""The paper's Sections 3 and 8, measurable on any torch network and with any optimiser.

balance      are the neurons balanced (Definitions 1 and 2)
activations  are a layer's outputs standardised, as Section 3.1 claims for balanced neurons
trust        stable steps (Definition 3) and deep relative trust (Definition 4)
steps        how far a step moves and turns each neuron (Definition 5, Equation 3)
solutions    a classifier, the examples that it fits, and rotations of its neurons
robustness   how far the neurons can be turned without an error (Definition 6): at most, at least, at random
caps         the measure of hyperspherical caps (Section 8)
pac_bayes    Theorem 1 and the bound that follows from it (Section 8)
records      measurements of runs, stored as JSON

caps, pac_bayes and records do not import torch.
"""
