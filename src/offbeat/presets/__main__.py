"""python -m offbeat.presets --markdown: the page docs/presets.md."""

import sys

from offbeat.presets import markdown

if sys.argv[1:] != ["--markdown"]:
    sys.exit("usage: python -m offbeat.presets --markdown > docs/presets.md")
print(markdown(), end="")
