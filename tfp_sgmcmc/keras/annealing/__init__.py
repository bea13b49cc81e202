"""The annealed ensemble of `SamplerCallback()`: its settings, and the choice of its members."""
