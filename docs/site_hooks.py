"""Changes of the site's pages while they are built: pictures load when they are seen, and links to
a page show a card."""

from typing import Any

CARD = "marginals.png"


def on_page_content(html: str, **_: Any) -> str:
    """Makes pictures load lazily."""
    return html.replace("<img ", '<img loading="lazy" ')


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Adds what other sites show when they link to the page."""
    properties = {
        "title": f"{page.title} - {config.site_name}" if not page.is_homepage else config.site_name,
        "description": config.site_description,
        "image": config.site_url + CARD,
        "url": page.canonical_url,
        "type": "website",
    }
    tags = [f'<meta property="og:{name}" content="{text}">' for name, text in properties.items()]
    tags.append('<meta name="twitter:card" content="summary_large_image">')
    return output.replace("</head>", "\n".join([*tags, "</head>"]), 1)
