"""Checks that docs/design.md names every source of the library, and docs/environment.md every variable that is read."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])

# The map of sources: a section per layer, with every file of the layer by its name, or by its name without ending where
# a header and a source belong together. Folders inside a layer are named, and their files may be.
design = (root / "docs/design.md").read_text()
sections = re.findall(r"^### ([^\n]*)\n(.*?)(?=^##)", design, re.S | re.M)
unnamed = []
for folder in sorted(path for path in (root / "src").iterdir() if path.is_dir()):
    text = "".join(body for title, body in sections if f"`{folder.name}`" in title)
    words = set(re.findall(r"[\w./]+", text))
    names = {part.removesuffix(".cpp").removesuffix(".h") for word in words for part in word.split("/")}
    for path in sorted(folder.iterdir()):
        if path.stem not in names and path.name != "CMakeLists.txt":
            unnamed.append(str(path.relative_to(root)))
assert not unnamed, "docs/design.md does not name: " + ", ".join(unnamed)

# The other way round: what the map names exists.
files = {path.name for path in root.glob("*/**/*") if "build" not in path.parts}
gone = [name for _, body in sections for name in re.findall(r"`(?:[\w/]+/)?(\w+\.(?:cpp|h))`", body) if name not in files]
assert not gone, "docs/design.md names files that do not exist: " + ", ".join(gone)

# Variables: every name that the library, the program and the module pass to getenv.
variables = (root / "docs/environment.md").read_text()
read = set()
for top in ("include", "src", "cli", "python"):
    for path in (root / top).rglob("*"):
        if path.suffix in (".cpp", ".h", ".py"):
            read |= set(re.findall(r"""(?:getenv\(|environ(?:\.get\(|\[))\s*["']([A-Z_]+)["']""", path.read_text()))
assert len(read) > 10, "no variables were found in the sources"
unlisted = sorted(name for name in read if f"`{name}`" not in variables)
assert not unlisted, "docs/environment.md does not list: " + ", ".join(unlisted)
