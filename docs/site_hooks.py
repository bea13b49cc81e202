"""Changes of the site's pages while they are built.

Pictures load when they are seen and have a transparent ground, links of READMEs stay within the
site, commands break at spaces alone, Greek letters look alike in text and equations, and links to a
page show a card.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

CARD = "marginals.png"  # copied with its white ground
BESIDE = "asv/"  # published beside the pages, by docs.yml
GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|xi|rho|sigma|tau|Sigma"
# Text is what stands between these. Groups: inline code, Greek letters, powers.
PARTS = re.compile(
    r"<pre.*?</pre>|<(?:div|span) class=\"arithmatex\">.*?</(?:div|span)>|<svg.*?</svg>"
    rf"|<code>([^<]*)</code>|<[^>]+>|\b({GREEK})\b(?!['\w])|(?<=\w)\^(-?\d+|[Tt]\b)",
    re.S,
)
HYPHENATED = re.compile(r"\S*-\S+")
LONGEST = 36  # letters of a word of code that is never broken


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Makes pictures load lazily, and links to the published site relative."""
    is_api = page.url.startswith("api/")

    def replaced(part: re.Match) -> str:
        code, letter, power = part.groups()
        if code is not None:
            return f"<code>{HYPHENATED.sub(unbroken, code)}</code>"
        if letter is not None and is_api:
            return rf'<span class="arithmatex">\(\{letter}\)</span>'
        if power is not None and is_api:
            return f"<sup>{power}</sup>"
        return part.group()

    html = PARTS.sub(replaced, html)
    html = re.sub(r'<img (?=[^>]*\bsrc="([^"]*)")', lambda part: lazy(part, page, config), html)
    root = re.escape(f'href="{config.site_url}')
    return re.sub(rf"{root}(?!{BESIDE})", f'href="{"../" * page.url.count("/")}', html)


def lazy(part: re.Match, page: Any, config: Any) -> str:
    """Returns the start of an image's tag, with its size, so that no text moves when it loads."""
    from PIL import Image

    with Image.open(Path(config.docs_dir, page.url, part[1]).resolve()) as image:
        width, height = image.size
    return f'<img loading="lazy" width="{width}" height="{height}" '


def unbroken(word: re.Match) -> str:
    """Returns a word with hyphens as HTML in which browsers do not break it there."""
    return (
        word.group() if len(word.group()) > LONGEST else f'<span class="word">{word.group()}</span>'
    )


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Adds what other sites show when they link to the page."""
    properties = {
        "title": f"{page.title} - {config.site_name}" if not page.is_homepage else config.site_name,
        "description": config.site_description,
        "image": f"{config.site_url}assets/{CARD}",
        "url": page.canonical_url,
        "type": "website",
    }
    tags = [f'<meta property="og:{name}" content="{text}">' for name, text in properties.items()]
    tags.append('<meta name="twitter:card" content="summary_large_image">')
    return output.replace("</head>", "\n".join([*tags, "</head>"]), 1)


def on_post_build(config: Any) -> None:
    """Takes the white out of pictures, which look as before on white and have no ground elsewhere.

    A light grey becomes black that is nearly transparent. `site.css` turns pictures over in the
    dark, where such a grey would otherwise be darker than the page.
    """
    from PIL import Image

    site = Path(config.site_dir)
    shutil.copy(site / CARD, site / "assets" / CARD)
    for file in {*site.rglob("*.png")} - {*(site / "assets").rglob("*")}:
        with Image.open(file) as image:
            small = image.convert("RGB").quantize(64, dither=Image.Dither.NONE)
        colors = np.reshape(small.getpalette() or (), (-1, 3))[:64]
        ink = 255 - colors.min(axis=1, keepdims=True)  # how much of a colour is not white
        pure = 255 - (255 - colors.astype(float)) * 255 / np.maximum(ink, 1)
        small.putpalette(np.rint(pure).clip(0, 255).astype(np.uint8).tobytes())
        small.save(file, optimize=True, transparency=ink.astype(np.uint8).tobytes())
