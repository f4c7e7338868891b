"""Measure a model: on held-out images, by top-1, few-shot, linear probe, k-NN and segmentation."""
