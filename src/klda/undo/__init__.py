"""What undoes changes of a model, kept for a while."""
