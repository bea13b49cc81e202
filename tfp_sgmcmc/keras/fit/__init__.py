"""The chain that runs inside `model.fit`."""
