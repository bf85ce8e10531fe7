"""What `cudriver.pytest_plugin` imports when it is used: docs/pytest.md."""
