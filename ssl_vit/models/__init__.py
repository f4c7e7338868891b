"""The encoder, weights in (init=) and out (timm, transformers, ONNX)."""
