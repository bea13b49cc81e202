"""The Markov chain that runs inside `model.fit`, and its state on the device."""
