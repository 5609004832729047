// Opens the folded section that a link leads to.
function openTarget() {
  const id = decodeURIComponent(location.hash.slice(1));
  const target = id && document.getElementById(id);
  for (let node = target; node; node = node.parentElement) {
    if (node.tagName === "DETAILS") node.open = true;
  }
  const own = target && target.querySelector(":scope > details");
  if (own) own.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();

// For keyboards and screen readers: what scrolls can be focused, headings have a level, regions have names.
document.querySelectorAll(".highlight pre, div.math, .table-wrapper").forEach((block) => {
  if (block.scrollWidth > block.clientWidth || block.scrollHeight > block.clientHeight) block.tabIndex = 0;
});
document.querySelectorAll(".caption[role=heading]").forEach((caption) => caption.setAttribute("aria-level", "2"));
document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "Pages");
document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");
