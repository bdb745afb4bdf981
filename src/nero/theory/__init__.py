"""The paper's Sections 3 and 8 as things that can be measured, on any torch network and with any optimiser.

balance           is each neuron balanced (Definitions 1 and 2)
activations       are a layer's outputs standardised, as Section 3.1 claims of balanced neurons
trust             stable steps (Definition 3) and deep relative trust (Definition 4)
steps             how far a step moves and turns each neuron (Definition 5, Equation 3)
solutions         a classifier, the examples it has fitted, and its neurons to be turned
rotations         turning neurons: by random draws from caps, towards a gradient, back into a cap
random_rotations  how far all neurons can be turned at random (Definition 6, on average)
adversarial       how little turning makes an error (Definition 6, from above)
certified         how much turning cannot (Definition 6, from below; perceptrons)
caps              the measure of hyperspherical caps (Section 8)
pac_bayes         Theorem 1 and the bound that follows from it (Section 8)
records           what was measured of a run, kept as JSON

caps, pac_bayes and records do without torch.
"""
