"""Files of tensors: read and written."""
