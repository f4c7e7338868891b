"""What pages are made of, as Markdown and HTML, and the page of one run. No torch here."""
