"""Push runs to the Hugging Face Hub, pull training states, and write model cards."""
