"""The Hugging Face Hub: what is fetched from it and checked, what of a run goes there, and the model card."""
