"""The runs of a folder: listed, ranked, as a page, and what can be removed of them."""
