"""Real environments, and how right the check is about them; writes docs/accuracy-tables.md."""
