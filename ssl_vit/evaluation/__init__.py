"""Measure what a model can do, as (name, value).

Measures are held-out images, top-1, few-shot, linear probe, k-NN and segmentation.
"""
