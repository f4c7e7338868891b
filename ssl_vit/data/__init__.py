"""Read the images of a run: from folders, parquet files, tars, the Hub or a synthetic set to batches.

The steps are: source, sampler, transforms, Batch, loader.
"""
