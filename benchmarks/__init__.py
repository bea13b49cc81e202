"""Speed, memory and correctness of the samplers, measured; not part of the installed package."""
