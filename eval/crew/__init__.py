"""Who plays the episodes of a run: this process, several of this machine, or actors of a Ray cluster."""
