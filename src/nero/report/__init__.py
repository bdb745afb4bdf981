"""From logged runs to tables and figures: reads a store and the paper's numbers, imports neither torch nor wandb.

catalogue   which table and figures each experiment has; a new one is one entry there
frame       runs, curves and traces as tidy frames
cells       what the runs of one table cell say
paper       the paper's own numbers, from results/paper
tables      the table of an experiment;  table_formats  the same as Markdown, CSV, LaTeX
figures     one function per figure;     style          names, colours, bytes that can be reproduced
curves      curves of several seeds;     figure3_numbers  how far ours lie from the authors'
files       what is written where, and the check against what is committed
"""
