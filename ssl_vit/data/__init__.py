"""Read the images of a run and make batches.

The steps are: source (folders, parquet files, tars, the Hub or a synthetic set), sampler,
transforms, Batch, loader.
"""
