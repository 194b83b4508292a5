"""Checks the README against the repository: its example is examples/first_buffer.cpp, and its links lead somewhere."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
readme = (root / "README.md").read_text()

shown = re.search(r"```cpp\n(.*?)```", readme, re.S).group(1)
built = (root / "examples/first_buffer.cpp").read_text()
built = built[built.index("#include"):]
assert shown == built, "the README's C++ example differs from examples/first_buffer.cpp"

missing = []
for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        if not (page.parent / link).exists():
            missing.append(f"{page.relative_to(root)} -> {link}")
assert not missing, "links that lead nowhere: " + ", ".join(missing)
