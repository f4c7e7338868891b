"""Many processes: what runs under a training, who holds which share, who asks all to stop, who is lost."""
