"""The theory of `nero.theory` measured on runs.

of_runs          a trained run, as its checkpoint has it: balance, activations, robustness
along_training   chosen steps of a training that is done for the purpose: trust, relative steps, angles
selection        which runs an experiment has to be measured
"""
