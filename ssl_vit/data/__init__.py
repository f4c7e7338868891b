"""Images: sources, sampler, transforms, batches and loaders; the synthetic set, shards and
streaming."""
