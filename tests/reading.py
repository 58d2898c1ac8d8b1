"""What a page shows somebody who only reads it: the text that is not folded, and whether a browser shows all of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

# What nobody needs to know who has to sign, and what says it instead.
JARGON = (
    r"\blots?\b", r"\bdropout\b", r"ChaCha", r"the thing itself", r"white-box", r"black-box", r"\blogits?\b",
    r"Rényi", r"\bPLD\b", r"\bepochs?\b", r"hyperparameter", r"safetensors", r"\bTPR\b", r"\bFPR\b",
)  # fmt: skip
AREA = re.compile(r"\bAUC\b")
PLAIN = "(AUC)", "; AUC)"  # in brackets, after what it means

_VOID = {"meta", "link", "br", "img", "input", "hr"}
_SILENT = {"style", "script", "title"}


class _Shown(HTMLParser):
    """Collects text outside closed details."""

    def __init__(self) -> None:
        super().__init__()
        self.path: list[tuple[str, bool]] = []  # every open element, and whether it hides what is in it
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.path.append((tag, tag in _SILENT or (tag == "details" and "open" not in dict(attrs))))

    def handle_endtag(self, tag: str) -> None:
        while self.path and self.path.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.path]
        hiding = [place for place, (_, hides) in enumerate(self.path) if hides]
        if not hiding or ("summary" in tags[hiding[-1] :] and len(hiding) == 1):
            self.parts.append(data)


def shown(html: str) -> str:
    """The text of a page as it is first seen: what is folded is left out, its summary is not."""
    parser = _Shown()
    parser.feed(html)
    return re.sub(r"\s+", " ", " ".join(parser.parts).replace("\N{NO-BREAK SPACE}", " "))


def jargon(text: str) -> list[str]:
    """Words of the trade in a text, and every AUC that does not follow what it means."""
    found = [match.group() for words in JARGON for match in re.finditer(words, text, re.IGNORECASE)]
    for match in AREA.finditer(text):
        around = text[max(0, match.start() - 2) : match.end() + 1]
        if not any(around.endswith(plain) for plain in PLAIN):
            found.append(text[max(0, match.start() - 40) : match.end() + 20])
    return found


# In a browser: lines of text that overlap, text that is cut off, and text that can hardly be told from its ground.
FAULTS = r"""() => {
  const faults = [], lines = [];
  const luminance = (colour) => {
    const part = colour.match(/[\d.]+/g).slice(0, 3).map((one) => one / 255);
    const [r, g, b] = part.map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const clear = (colour) => colour === "transparent" || /^rgba\(.*, 0\)$/.test(colour);
  const ground = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!clear(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const wide = document.documentElement.clientWidth;
  const whole = document.documentElement.scrollWidth;
  if (whole > wide) faults.push(`the page is wider than the window: ${whole}`);
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, says = node.textContent.trim(), owner = node.parentElement;
    if (!says || owner.closest("script, style, title, option")) continue;
    const style = getComputedStyle(owner);
    if (style.visibility === "hidden" || !owner.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = owner.closest(".scroll"), clip = box && box.getBoundingClientRect();
    const inSvg = owner instanceof SVGElement;
    const ink = inSvg ? style.fill : style.color;
    if (!clear(ink) && ink.startsWith("rgb")) {
      const [a, b] = [luminance(ink), luminance(ground(owner))].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${says.slice(0, 60)}`);
    }
    for (const rect of range.getClientRects()) {
      if (rect.width < 1 || rect.height < 1) continue;
      if (clip && (rect.right > clip.right + 1 || rect.left < clip.left - 1)) {
        if (matchMedia("print").matches) faults.push(`cut off on paper: ${says.slice(0, 60)}`);
        continue;
      }
      if (rect.right > wide + 1 || rect.left < -1) faults.push(`cut off: ${says.slice(0, 60)}`);
      lines.push({ rect, says, node });
    }
  }
  for (let i = 0; i < lines.length; i++) for (let j = i + 1; j < lines.length; j++) {
    const [a, b] = [lines[i], lines[j]];
    if (a.node === b.node) continue;
    const across = Math.min(a.rect.right, b.rect.right) - Math.max(a.rect.left, b.rect.left);
    const down = Math.min(a.rect.bottom, b.rect.bottom) - Math.max(a.rect.top, b.rect.top);
    if (across > 2 && down > 0.4 * Math.min(a.rect.height, b.rect.height))
      faults.push(`overlap: "${a.says.slice(0, 40)}" and "${b.says.slice(0, 40)}"`);
  }
  return faults;
}"""
VIEWS = [(width, scheme, "screen") for width in (390, 1280) for scheme in ("light", "dark")]
PAPER = (680, "light", "print")  # what A4 leaves between its margins


def faults(page: Any, folded: bool = False) -> dict[str, list[str]]:
    """What a browser shows badly of the page that is open, by width, colours and medium; empty if nothing.

    Args:
        page: A page of Playwright.
        folded: Whether everything that is folded is opened first.
    """
    if folded:
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = {}
    for width, scheme, medium in (*VIEWS, PAPER):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media=medium, color_scheme=scheme)
        if told := page.evaluate(FAULTS):
            found[f"{width} px, {scheme}, {medium}"] = sorted(set(told))
    return found
