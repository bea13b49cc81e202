"""What a run keeps on disk: its directory, checkpoints and draws, in files without pickle."""
