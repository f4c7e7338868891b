"""Pictures: where they come from (sources), what becomes of one (pictures), and which make up a step (batches)."""
