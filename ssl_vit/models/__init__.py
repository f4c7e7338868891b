"""Build the encoder, load weights (init=) and export weights (timm, transformers, ONNX)."""
