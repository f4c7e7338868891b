"""ssl_vit: what does pre-training without labels buy a Vision Transformer? See docs/design.md."""

__version__ = "0.1.0"
