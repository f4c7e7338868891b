"""What a model can do, as (name, value): held-out images, top-1, few-shot, linear probe, k-NN,
segmentation."""
