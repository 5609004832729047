// A formula that is a little wider than its page is drawn smaller; a much wider one is scrolled.
document.querySelectorAll("div.math").forEach((block) => {
  const share = block.clientWidth / block.scrollWidth;
  if (share < 1) block.style.fontSize = `${Math.floor(100 * Math.max(share, 0.75)) - 1}%`;
});

// For keyboards and screen readers: what scrolls can be focused, headings have a level, regions have names. A table that
// scrolls says so.
document.querySelectorAll(".highlight pre, div.math, .table-wrapper").forEach((block) => {
  const scrolls = block.scrollWidth > block.clientWidth;
  if (scrolls || block.scrollHeight > block.clientHeight) block.tabIndex = 0;
  block.classList.toggle("scrolls", scrolls);
});
document.querySelectorAll(".caption[role=heading]").forEach((caption) => caption.setAttribute("aria-level", "2"));
document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "Pages");
document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");
