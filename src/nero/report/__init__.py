"""From logged runs to tables and figures: reads a store and the paper's numbers, imports neither torch nor wandb.

catalogue   which table and figures each experiment has; a new one is one entry there
assembly    all that a report consists of;  files  what is written where, and the check against what is committed
frame       runs, curves and traces as tidy frames
cells       what the runs of one table cell say;  constraints  which constraints of balanced networks they kept
paper       the paper's own numbers, from results/paper;  verdicts  how ours compare with them
            disagreements  why some differ, from results/disagreements.yaml
tables      the table of an experiment;  findings  what its rows say as a whole: ranking, best rates
            table_formats  laid out, and as Markdown, CSV, LaTeX
sensitivity, costs  tables over several experiments: every learning rate, and what runs took
sheets      a table laid out, before any format;  sheet_markdown, sheet_latex, sheet_csv, sheet_html  the same in each
readme      the part of the README that is made of runs
page        the report as one HTML file;  page_files  what it looks like and does
            page_runs  every run of the store;  page_samples  what GANs draw;  figure_data  what figures show
figures     Figure 3, and learning curves of any experiment
            cifar_figures  Figures 1, 2 and 5;  cgan_figure  Figure 4, and sample_strips  what its networks draw
            language_figures  Figures 6 and 7;  pong_figure  Figure 8;  imagenet_figure  Figure 9
            imagenet_settings  which of its curves a cell is
panel       our curves, the authors' and the paper's final values in one panel;  recorded  what a panel shows, kept
rows_of_panels  training and validation beside each other: Figures 1, 2, 5 to 7 and 9;  log_scale  their vertical axes
drawing     a cell's runs as a line and a band, and notes on what is missing;  curves  those runs, made comparable
figureN_numbers  what Figures 3, 4 and 6 to 9 show, as Markdown
            curve_numbers  places on a curve;  search_numbers  where every learning rate and seed ended
theory_report  tables and figures of the theory, from results/theory;  theory_evidence  its records, grouped
            theory_bounds  Theorem 1 at measured angles;  theory_*_table, theory_*_figures  each of them
style       names, colours, bytes that can be reproduced
"""
