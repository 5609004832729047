"""What the site is built with and how its pages are checked: contents, reference, notebooks, code blocks."""
