"""What a model can do, as (name, value)."""
