"""The Hugging Face Hub: push, pull and the model card."""
