"""Real input for models: tensors from files, pictures, texts, and batches that a program of one's own makes."""
