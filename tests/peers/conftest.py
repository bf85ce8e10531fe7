"""The tests here run in the peers' environment only: see __main__.py."""

collect_ignore_glob = ["test_*.py"]
