"""Tables of results as text and HTML."""

import re
from html.parser import HTMLParser

import numpy as np

from tfp_sgmcmc.internal.tables import (
    Table,
    as_html,
    as_text,
    code_block,
    graded,
    histogram_picture,
)

TABLE = Table(
    "A <title>",
    ("", "mean", "ESS"),
    [("w[0]", "1.25", "400"), ("longer[12]", "-0.50", "1,000")],
    notes=["below"],
    flags=[("wrong", "The chains disagree. Run longer."), ("note", "a < b")],
    bars={"ESS": [0.4, 2.0]},
    pictures=["<svg></svg>", ""],
    details=["It did this."],
)


class Tags(HTMLParser):
    """Counts tags, and fails on a tag that is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_text_is_aligned_and_ends_with_flags() -> None:
    lines = as_text(TABLE).split("\n")
    assert lines[0] == "A <title>"
    assert lines[2:5] == [
        "             mean    ESS",
        "w[0]         1.25    400",
        "longer[12]  -0.50  1,000",
    ]
    assert lines[-4:] == ["below", "", "wrong: The chains disagree. Run longer.", "note: a < b"]


def test_html_is_well_formed_and_escaped() -> None:
    page = Tags()
    page.feed(as_html(TABLE))
    assert not page.open and page.seen.count("td") == 8 and page.seen.count("svg") == 1
    assert "A <title>" in page.text and any("a < b" in part for part in page.text)
    assert "100%" in as_html(TABLE)  # a bar beyond the cell ends there
    assert "<details>" in as_html(TABLE) and "<details>" not in as_html(TABLE._replace(details=()))


def test_words_stand_to_the_left_and_numbers_to_the_right() -> None:
    text = as_html(Table("", ("", "mean", "kind"), [("w", "1e-9", "3"), ("v", "nan", "none")]))
    assert [*re.findall(r"<td style=\"text-align:(\w+)", text)] == ["left", "right", "left"] * 2


def test_code_keeps_its_lines() -> None:
    assert '"white-space:pre">a &lt; b\nc</code>' in code_block(["a < b", "c"])


def test_flags_are_sentences_or_objects_with_grade_and_remedy() -> None:
    class Flag(str):
        grade, remedy = "wrong", "Run longer."

    assert graded("Something.") == ("doubt", "Something.")
    assert graded(Flag("R-hat is 2.")) == ("wrong", "R-hat is 2. Run longer.")
    assert graded(Flag("Run longer.")) == ("wrong", "Run longer.")


def test_pictures_of_constants_and_of_no_numbers_are_empty() -> None:
    assert histogram_picture(np.zeros(5)) == histogram_picture(np.array([np.nan])) == ""
    page = Tags()
    page.feed(histogram_picture(np.arange(1000.0)))
    assert page.seen == ["svg", "path"] and not page.open
