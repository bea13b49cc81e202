"""What sampling leaves: samples of the weights and what they predict, in memory and in files."""
