"""Runs that were trained and kept their checkpoint. For whatever looks at one: translating, writing, playing.

loading  a run by its directory or id, with the weights of its checkpoint
options  words on the command line that such scripts share
"""
