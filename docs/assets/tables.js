// Columns of numbers stand to the right, with their heads, so that digits stand below each other.
const number = /^[-−+<>~±*\s\d.,%/×]*(e[-+]?\d+)?\**$|^([-−+]?[\d.,e]+ ?(\+-|±|~|\/) ?[\d.,e-]+\**|nan|not run)$/;
document$.subscribe(() => {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const rows = [...table.rows].slice(1);
    const texts = (i) => rows.map((row) => row.cells[i]?.textContent.trim() ?? "").filter(Boolean);
    for (const [i, head] of [...(table.rows[0]?.cells ?? [])].entries()) {
      const found = texts(i);
      // Columns with sentences get room, so that narrow screens scroll instead of breaking each word.
      const longest = Math.max(0, ...found.map((text) => text.length));
      head.style.minWidth = i
        ? `${Math.min(17, longest / 3 + 1.8)}em`
        : `min(${Math.min(13, Math.max(7.5, longest / 4))}em, 40vw)`;
      const numbers = found.filter((text) => number.test(text) && /\d/.test(text));
      if (!numbers.length || found.some((text) => !number.test(text))) continue;
      for (const row of [head.parentElement, ...rows]) {
        if (row.cells[i]) row.cells[i].style.textAlign = "right";
      }
    }
  }
});
