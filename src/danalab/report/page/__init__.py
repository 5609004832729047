"""One self-contained HTML page: templates, palette for light and dark, inline SVG."""
