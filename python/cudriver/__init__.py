"""cudriver."""
