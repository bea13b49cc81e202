"""How fast samplers and drivers are, and how much memory they need."""
