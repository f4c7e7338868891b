"""Data: sources (folders, parquet, tars, the Hub, a synthetic set) -> sampler -> transforms ->
Batch -> loaders."""
