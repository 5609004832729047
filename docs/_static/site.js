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
