// Tables that are wider than the page scroll; the keyboard reaches those, and screen readers say what they are.
(() => {
  const heading = (frame) => {
    let last = null;
    for (const each of document.querySelectorAll(".md-content :is(h1, h2, h3, h4)"))
      if (each.compareDocumentPosition(frame) & Node.DOCUMENT_POSITION_FOLLOWING) last = each;
    return last ? last.textContent.replace("¶", "").trim() : document.title;
  };
  const mark = (frame) => {
    if (frame.scrollWidth > frame.clientWidth) {
      frame.tabIndex = 0;
      frame.setAttribute("role", "region");
      frame.setAttribute("aria-label", `Table: ${heading(frame)}`);
    } else for (const name of ["tabindex", "role", "aria-label"]) frame.removeAttribute(name);
  };
  const sizes = new ResizeObserver((changed) => changed.forEach((each) => mark(each.target)));
  const frames = () => document.querySelectorAll(".md-typeset__scrollwrap").forEach((each) => sizes.observe(each));
  // The theme puts tables into frames once the page is there.
  new MutationObserver(frames).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
  frames();
})();
