// Browsers load no search index from the file system, so the theme hides its search there: a line says what to do.
if (location.protocol === "file:") {
  const note = document.createElement("p");
  note.className = "needs-server";
  note.innerHTML = "Search needs a server: <code>make serve</code>, then <code>http://localhost:8000</code>.";
  document.querySelector(".md-content")?.prepend(note);
}
