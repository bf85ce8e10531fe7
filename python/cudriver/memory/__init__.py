"""The part of the memory half that is written in Python; ``cudriver`` shows its names."""
