"""What sampling leaves: samples of the weights, and what they predict."""
