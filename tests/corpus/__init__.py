"""Real environments, and how right the check is about them: `make corpus` writes docs/accuracy.md."""
