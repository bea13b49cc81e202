// Numbers in tables stand to the right, so that digits stand below each other.
document$.subscribe(() => {
  for (const cell of document.querySelectorAll(".md-typeset td")) {
    const text = cell.textContent.trim();
    if (/^[-−+<>~]?\s?[\d.,]+(\s?%|\s?±\s?[\d.,]+|e[-+]?\d+)?$/.test(text)) {
      cell.style.textAlign = "right";
    }
  }
});
