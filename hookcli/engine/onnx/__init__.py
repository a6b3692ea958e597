"""The models of .onnx files as sides of a comparison: read, run by ONNX Runtime, and paired with modules."""
