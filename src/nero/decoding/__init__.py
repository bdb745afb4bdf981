"""What trained language networks say: translations, text, and how good they are. For scripts that look at a run.

translations of many sentences by a network
             beam_search  how they are found;  step_by_step  what the network says of each next word
sentences    what is translated: a part of the data, or one's own lines
joining      words put together as written English;  bleu  how near they are to a reference
sampling     text by a language model;  prompts  how it begins and how it is shown
evaluation   perplexities of a checkpoint, as the run's own task measures them
"""
