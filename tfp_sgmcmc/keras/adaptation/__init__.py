"""`SamplerCallback("auto")`: a pilot measures the model and chooses the kernel."""
