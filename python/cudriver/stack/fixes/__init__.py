"""Commands that fix what a rule found, for this installer, and proven on a copy of the facts."""
