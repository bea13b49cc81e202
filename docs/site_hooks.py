"""Changes of the site's pages while they are built.

Pictures load when they are seen, links of READMEs stay within the site, and links to a page show a
card.
"""

from typing import Any

CARD = "marginals.png"
BESIDE = "asv/"  # published beside the pages, by docs.yml


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Makes pictures load lazily, and links to the published site relative."""
    beside = f'href="{config.site_url}{BESIDE}'
    html = html.replace(beside, "BESIDE").replace(
        f'href="{config.site_url}', f'href="{"../" * page.url.count("/")}'
    )
    return html.replace("BESIDE", beside).replace("<img ", '<img loading="lazy" ')


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
