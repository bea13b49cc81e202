"""`sample(target, initial_state, num_results)`, without any setting, on posteriors nobody tuned."""
