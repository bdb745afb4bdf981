"""From logged runs to tables and figures: reads a store and the paper's numbers, imports neither torch nor wandb.

catalogue   which table and figures each experiment has; a new one is one entry there
frame       runs, curves and traces as tidy frames
cells       what the runs of one table cell say;  constraints  which constraints of balanced networks they kept
paper       the paper's own numbers, from results/paper
tables      the table of an experiment;  table_formats  the same as Markdown, CSV, LaTeX
figures     Figure 3, and learning curves of any experiment
            cifar_figures  Figures 1, 2 and 5;  cgan_figure  Figure 4, and sample_strips  what its networks draw
            language_figures  Figures 6 and 7;  pong_figure  Figure 8;  imagenet_figure  Figure 9
            imagenet_settings  which of its curves a cell is
panel       our curves, the authors' and the paper's final values in one panel
rows_of_panels  training and validation beside each other: Figures 1, 2, 5 to 7 and 9;  log_scale  their vertical axes
drawing     a cell's runs as a line and a band, and notes on what is missing;  curves  those runs, made comparable
figureN_numbers  what Figures 3, 4 and 6 to 9 show, as Markdown
            curve_numbers  places on a curve;  search_numbers  where every learning rate and seed ended
style       names, colours, bytes that can be reproduced
files       what is written where, and the check against what is committed
"""
