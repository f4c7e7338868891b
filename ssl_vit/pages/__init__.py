"""Build pages as Markdown and HTML, and the page of a single run. No module here imports torch."""
