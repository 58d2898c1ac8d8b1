"use strict";
const parts = ["left", "figures"];
const told = document.getElementById("told");

async function look() {
  if (document.hidden) return;
  try {
    const reply = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (!reply.ok) throw new Error(reply.status);
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
    document.body.className = fresh.body.className;
    for (const part of parts) {
      const [old, now] = [document.getElementById(part), fresh.getElementById(part)];
      if (old.innerHTML !== now.innerHTML) old.innerHTML = now.innerHTML;
    }
    told.textContent = "Live: refreshed every 5 seconds.";
  } catch {
    told.textContent = "Not live: the service does not respond; these figures are older.";
  }
}

look();
setInterval(look, 5000);
