// Draws the equations that pymdownx.arithmatex marked. Without scripts their LaTeX is shown.
document$.subscribe(() => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const latex = element.textContent.trim();
    if (!/^\\[([]/.test(latex)) continue; // drawn before
    katex.render(latex.slice(2, -2), element, {
      displayMode: latex.startsWith("\\["),
      throwOnError: false,
    });
  }
});
