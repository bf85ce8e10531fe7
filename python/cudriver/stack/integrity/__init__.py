"""Whether an installation is whole: what RECORD says beside what lies there."""
