"""From logged runs to tables and figures. Imports neither torch nor wandb.

evidence    an experiment and its runs: the argument of every maker
catalogue   which table and figures each experiment has; add new ones there
frame       runs, curves and traces as data frames;  cells  the runs of one table cell and its status
paper       the paper's numbers, from results/paper;  verdicts  comparison of ours with them
            disagreements  why some differ, from results/disagreements.yaml
assembly    the whole report;  files  its files, and the check of committed ones
tables/     tables of experiments, learning rates, costs and runs; sheets has the table model and its formats
figures/    Figures 1 to 9;  theory/  tables and figures of the theory;  page/  the report as one HTML file
"""
