"""Write the generated parts of every page."""

from docs.generating.parts import page_text, pages

for page in pages():
    page.write_text(page_text(page.read_text()))
