"""What more cores, processes and machines bring to a run."""
