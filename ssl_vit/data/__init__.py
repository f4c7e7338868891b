"""Read images from folders, parquet files, tars, the Hub or a synthetic set, up to batches.

The steps are: source, sampler, transforms, Batch, loader.
"""
